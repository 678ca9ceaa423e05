"""A small dataset, and a job file that would be accepted."""

from pathlib import Path

import pytest

from tests.jobs.making import wav, write_dataset, write_job


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "dataset", [[wav(), wav(0.5)], [wav(0.3), b"no sound"]])


@pytest.fixture
def job_file(tmp_path: Path, dataset: Path) -> str:
    return write_job(tmp_path, dataset)
