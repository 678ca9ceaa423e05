"""Datasets of the hub, with stand-ins for the hub itself: what is asked of it, and what its answers become."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from pipeline.dataset_files import change_of
from pipeline.errors import SourceError
from pipeline.records import SourceFile
from tests.pipeline.source_data import audio_table, good_rows, source, write_parquet

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Asked:
    """What was asked of the hub and of `datasets`."""

    revisions: list[str | None]
    loads: list[dict[str, Any]]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """A hub with one dataset, whose files lie in `tmp_path`."""
    import datasets

    asked = Asked([], [])
    real = datasets.load_dataset_builder

    class Info:
        sha = COMMIT

    def dataset_info(self, repo: str, revision: str | None = None, timeout: float | None = None) -> Info:
        asked.revisions.append(revision)
        return Info()

    def load(path: str, name: str | None, **options: Any) -> Any:
        asked.loads.append({"path": path, **options})
        return real(str(tmp_path), name, cache_dir=options["cache_dir"])

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", dataset_info)
    monkeypatch.setattr("datasets.load_dataset_builder", load)
    monkeypatch.setattr("pipeline.hub.list_files", lambda root: [])
    return asked


@pytest.mark.parametrize("path", ["user/speech", "hf://datasets/user/speech"])
def test_a_revision_is_pinned_to_its_commit(tmp_path: Path, hub: Asked, path: str):
    write_parquet(tmp_path / "a.parquet", audio_table(["a"]))
    src = source(path, revision="v1.0", id_column="id")
    assert hub.revisions == ["v1.0"]
    assert [(load["path"], load["revision"]) for load in hub.loads] == [("user/speech", COMMIT)]
    assert src.info.revision == src.fingerprint_facts()["revision"] == COMMIT
    assert src.resolved.root == f"hf://datasets/user/speech@{COMMIT}"
    assert src.info.remote
    assert [row.key for row in good_rows(src)] == ["a"]


def test_files_at_a_commit_never_change():
    assert change_of(SourceFile(f"hf://datasets/user/speech@{COMMIT}/a.parquet", 10)) is None


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (GatedRepoError, "user/speech is gated: ask for access on its page, and set HF_TOKEN"),
        (RepositoryNotFoundError, "user/speech is no folder here, and no dataset of the hub"),
        (RevisionNotFoundError, "user/speech has no revision 'v9'"),
        (ConnectionError, "user/speech is no folder here, and the hub can't be asked for it: ConnectionError: why"),
    ],
)
def test_what_the_hub_refuses_is_one_line(monkeypatch: pytest.MonkeyPatch, error: type[Exception], words: str):
    class Refusal(error):
        def __init__(self) -> None:
            Exception.__init__(self, "why\nin two lines")

    def dataset_info(self, repo: str, revision: str | None = None, timeout: float | None = None) -> None:
        raise Refusal

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", dataset_info)
    expected = words.replace("ConnectionError", "Refusal")
    with pytest.raises(SourceError) as caught:
        source("user/speech", revision="v9")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_can_be_no_dataset_is_not_asked_for(hub: Asked):
    with pytest.raises(SourceError, match="can't be a dataset's name"):
        source("user/spee ch")
    assert hub.revisions == []
