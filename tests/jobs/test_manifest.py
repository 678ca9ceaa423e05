"""What a run remembers: absolute paths, references as written, and no literal secret."""

import pytest

from jobs.manifest import library_versions, missing_secrets, with_absolute_paths, without_secrets


def job(storage_options=None, **changes):
    values = {
        "input": {"path": "data", "data_files": None, "data_dir": None},
        "model": {"weights": "kyutai/mimi"},
        "output": {"path": "out", "storage_options": storage_options or {}},
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        values[section][name] = value
    return values


@pytest.mark.parametrize(
    "options",
    [
        {"key": "abc"},
        {"secret": 1234},
        {"client_kwargs": {"aws_session_token": "abc"}},
        {"whatever": ["abc"]},
        {"secret": "abc${SUFFIX}"},
        {"endpoint_url": "https://me:abc@store"},
    ],
)
def test_what_may_be_a_secret_is_not_kept_and_is_named(options):
    kept, names = without_secrets(job(options))
    assert "abc" not in str(kept) and "1234" not in str(kept)
    assert len(names) == 1 and names[0].startswith("output.storage_options.")
    assert missing_secrets({"withheld": names}, job()) == names
    assert missing_secrets({"withheld": names}, job(options)) == []


@pytest.mark.parametrize(
    "options",
    [
        {"secret": "${SECRET}", "key": "${A}${B}"},
        {"anon": True, "endpoint_url": "https://store", "client_kwargs": {"region_name": "eu-1"}},
        {"token": None, "verify": False},
    ],
)
def test_references_switches_and_harmless_options_are_kept(options):
    kept, names = without_secrets(job(options))
    assert (kept["output"]["storage_options"], names) == (options, [])


def test_local_paths_are_kept_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "mimi.safetensors").touch()
    kept = with_absolute_paths(job(model__weights="mimi.safetensors"))
    assert kept["input"]["path"] == f"{tmp_path}/data"
    assert kept["model"]["weights"] == f"{tmp_path}/mimi.safetensors"
    assert kept["output"]["path"] == f"{tmp_path}/out"


def test_ids_urls_and_references_stay_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = job(input__path="user/dataset", output__path="s3://bucket/out")
    assert with_absolute_paths(values) == values
    values = job(input__path="${DATA}/x", output__path="${OUT}", model__weights="${WEIGHTS}")
    assert with_absolute_paths(values) == values


def test_files_of_a_builder_are_kept_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {"train": ["a/*.jsonl", "s3://b/c.jsonl"]}
    kept = with_absolute_paths(job(input__path="json", input__data_files=files))
    assert kept["input"]["path"] == "json"
    assert kept["input"]["data_files"] == {"train": [f"{tmp_path}/a/*.jsonl", "s3://b/c.jsonl"]}


def test_versions_of_what_makes_the_rows_are_recorded():
    assert {"torch", "soundfile", "soxr", "av", "datasets", "pyarrow"} <= set(library_versions())
