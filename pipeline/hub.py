"""Datasets that name their own files, resolved by `datasets`: of the hub, by a card's configs, by `data_files`.

Only the names of the files are asked for; reading them is left to `formats`.
"""

import os
import re
import tempfile
from typing import Any

from pipeline.dataset_files import describe, is_url, list_files, stat_files
from pipeline.errors import SourceError
from pipeline.records import SourceFile
from pipeline.spec import InputSpec

HUB_PREFIX = "hf://datasets/"
COMMIT = re.compile(r"^[0-9a-f]{40}$")


def hub_commit(dataset: str, revision: str | None) -> str:
    """The commit that a revision is now; the token comes from the environment. SourceError where that isn't known."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        commit = HfApi().dataset_info(dataset, revision=revision, timeout=60.0).sha
    except GatedRepoError as error:
        raise SourceError(f"input.path: {dataset} is gated: ask for access on its page, and set HF_TOKEN") from error
    except RevisionNotFoundError as error:
        raise SourceError(f"input.revision: {dataset} has no revision {revision!r}") from error
    except RepositoryNotFoundError as error:
        raise SourceError(
            f"input.path: {dataset} is no folder here, and no dataset of the hub that this token can see"
        ) from error
    except Exception as error:
        raise SourceError(
            f"input.path: {dataset} is no folder here, and the hub can't be asked for it: {describe(error)}"
        ) from error
    if commit is None:
        raise SourceError(f"input.path: {dataset}: the hub names no commit; give input.revision")
    return commit


def by_datasets(
    spec: InputSpec, path: str, data_files: Any, revision: str | None
) -> tuple[str, dict[str, list[SourceFile]], dict[str, Any]]:
    """-> (builder name, split -> files, features of the card as JSON). SourceError with the library's reason."""
    import datasets

    verbosity, bars = datasets.utils.logging.get_verbosity(), datasets.utils.are_progress_bars_disabled()
    datasets.utils.logging.set_verbosity_error()
    datasets.utils.disable_progress_bars()
    try:
        with tempfile.TemporaryDirectory() as cache:  # nothing of ours stays in the user's cache
            builder = datasets.load_dataset_builder(
                path, spec.name, data_dir=spec.data_dir, data_files=data_files, revision=revision, cache_dir=cache
            )
            files = {
                str(split): [str(url) for url in urls] for split, urls in (builder.config.data_files or {}).items()
            }
            features = dict(builder.info.features.to_dict()) if builder.info.features is not None else {}
    except Exception as error:
        raise SourceError(f"input: datasets can't resolve {path}: {describe(error)}") from error
    finally:
        datasets.utils.logging.set_verbosity(verbosity)
        if not bars:
            datasets.utils.enable_progress_bars()
    name = type(builder).__module__.rsplit(".", 1)[-1]
    if not any(files.values()):
        raise SourceError(f"input: datasets finds no files for {path}")
    known = _listed(path, revision) if revision is not None else {}
    return name, {split: _with_sizes(urls, known) for split, urls in files.items()}, features


def _listed(dataset: str, commit: str) -> dict[str, SourceFile]:
    """The files of a hub dataset by URL: one listing, where asking for each would be a request a file."""
    return {file.url: file for file in list_files(f"{HUB_PREFIX}{dataset}@{commit}")}


def _with_sizes(urls: list[str], known: dict[str, SourceFile]) -> list[SourceFile]:
    """In the order given, each once."""
    unique = list(dict.fromkeys(url if is_url(url) else os.path.abspath(url) for url in urls))
    asked = iter(stat_files([url for url in unique if url not in known]))
    return [known[url] if url in known else next(asked) for url in unique]


def folder_of(files: list[SourceFile]) -> str:
    """The deepest folder that holds all the files."""
    folders = [file.url.rsplit("/", 1)[0] for file in files]
    shortest, *rest = sorted(set(folders), key=len)
    while any(not (other + "/").startswith(shortest + "/") for other in rest) and "/" in shortest:
        shortest = shortest.rsplit("/", 1)[0]
    return shortest or "/"
