"""Checkpoints on the hub: which file, which commit, its config. The weights come down only when they're loaded."""

from pathlib import Path

from mimi.checkpoint import MAX_CONFIG_BYTES, CheckpointInfo, choose_file, inspect_file, mimi_config, read_config
from mimi.config import MimiConfig
from mimi.errors import CheckpointError
from mimi.layouts import Layout

LISTING_TIMEOUT_S = 10.0


def inspect_repo(repo: str, revision: str | None) -> CheckpointInfo:
    """Lists the repo at `revision` (default: main), resolves it to a commit, reads config.json.

    Where the hub can't be reached, a copy in this machine's cache serves. Raises CheckpointError.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        listing = HfApi().model_info(repo, revision=revision, files_metadata=True, timeout=LISTING_TIMEOUT_S)
    except HfHubHTTPError as error:  # the hub answered: no such repo, revision, or right to it
        first = str(error).strip().splitlines()
        at = "" if revision is None else f" at {revision}"
        raise CheckpointError(
            f"weights: the hub doesn't give {repo}{at} ({first[-1] if first else type(error).__name__}); "
            "name a hub id you can read, a folder, a file or random:SEED"
        ) from error
    except (*_hub_errors(), ValueError) as error:  # offline mode, no network, a name the hub can't have
        return _inspect_cached(repo, revision, error)
    sizes = {sibling.rfilename: sibling.size for sibling in listing.siblings or []}
    filename = choose_file(sizes, f"the repo {repo}")
    layout: Layout = "transformers" if filename == "model.safetensors" else "moshi"
    raw = None
    if "config.json" in sizes:
        if (sizes["config.json"] or 0) > MAX_CONFIG_BYTES:
            raise CheckpointError(f"weights: {repo}'s config.json is too large for Mimi's; name a Mimi checkpoint")
        raw = read_config(Path(_download(repo, "config.json", listing.sha)))
    config = mimi_config(raw, layout, f"{repo}/config.json") or MimiConfig()  # kyutai/moshi* have the one Mimi
    return CheckpointInfo(
        repo, layout, config, config.num_codebooks, repo=repo, filename=filename, revision=listing.sha
    )


def file_sha256(info: CheckpointInfo) -> str | None:
    """sha256 of the weights as the hub states it; None where it doesn't."""
    from huggingface_hub import HfApi

    assert info.repo is not None
    try:
        listing = HfApi().model_info(info.repo, revision=info.revision, files_metadata=True, timeout=LISTING_TIMEOUT_S)
    except _hub_errors():
        return None
    for sibling in listing.siblings or []:
        if sibling.rfilename == info.filename and sibling.lfs is not None:
            return sibling.lfs.sha256
    return None


def download(info: CheckpointInfo) -> str:
    """Path of the weights in the hub's cache on this machine. Raises CheckpointError."""
    assert info.repo is not None and info.filename is not None
    return _download(info.repo, info.filename, info.revision)


def _hub_errors() -> tuple[type[Exception], ...]:
    """What a call to the hub may raise; its HTTP library, and so the base of those errors, depends on its version."""
    from huggingface_hub.errors import HfHubHTTPError

    base = HfHubHTTPError.__mro__[1]
    return (HfHubHTTPError, OSError, RuntimeError, *([base] if issubclass(base, Exception) else []))


def _download(repo: str, filename: str, revision: str | None) -> str:
    from huggingface_hub import hf_hub_download

    try:
        return hf_hub_download(repo, filename, revision=revision)
    except _hub_errors() as error:
        last = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise CheckpointError(f"weights: {repo}/{filename} can't be downloaded ({last}); try again") from error


def _inspect_cached(repo: str, revision: str | None, cause: Exception) -> CheckpointInfo:
    from dataclasses import replace

    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(repo, revision=revision, local_files_only=True))
        filename = choose_file([path.name for path in folder.iterdir()], f"the cached repo {repo}")
    except (LocalEntryNotFoundError, HFValidationError, OSError) as error:
        last = (str(cause).strip().splitlines() or [type(cause).__name__])[-1]
        raise CheckpointError(
            f"weights: {repo} isn't here and the hub can't be reached ({last[:120]}); "
            "name a hub id, a folder, a file or random:SEED"
        ) from error
    info = inspect_file(repo, folder / filename)
    return replace(info, repo=repo, filename=filename, revision=folder.name)
