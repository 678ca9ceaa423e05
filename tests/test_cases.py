"""Every faulty and unusual input of the shared cases, through the whole pipeline: each has the outcome it must have."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from mimi import Mimi
from tests.mimi.checkpoints import SMALL, write_random
from tests.torture.killing import Run
from tests.whole import encode_here, rows

SCRIPT = Path(__file__).resolve().parents[2] / "shared" / "cases" / "make_cases.py"
pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="the shared cases aren't beside the repository")


@pytest.fixture(scope="module")
def cases(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("cases")
    subprocess.run([sys.executable, str(SCRIPT), str(out)], check=True, capture_output=True)
    write_random(out / "weights", 0, "transformers", SMALL)
    return out


def entries_of(cases: Path) -> list[dict[str, Any]]:
    return json.loads((cases / "cases.json").read_text(encoding="utf-8"))


def job_of(cases: Path, dataset: dict[str, Any], out: Path) -> str:
    where = dict(dataset["job_input"])
    for name in ("path", "data_files"):
        if (cases / where.get(name, "\0")).exists():
            where[name] = str(cases / where[name])
    path = out.with_suffix(".yaml")
    job = {
        "input": where,
        "model": {"weights": str(cases / "weights"), "num_codebooks": 4},
        "output": {"path": str(out)},
    }
    path.write_text(yaml.safe_dump(job))
    return str(path)


def wrong_outcomes(entries: list[dict[str, Any]], dataset: dict[str, Any], out: Path) -> list[str]:
    """What differs from the listed outcomes; a row is found by its key, or by its index in the dataset."""
    encoded, failed = rows(out, "data"), rows(out, "errors")
    found = sorted(encoded + failed, key=lambda row: (row["shard"], row["row"]))
    listed = [e for e in entries if e["input"] == dataset["input"] and e.get("row") is not None]
    if len(found) != dataset["rows"] or len(failed) != dataset["failed"]:
        return [f"{dataset['id']}: {len(found)} rows, {len(failed)} failed; expected {dataset}"]
    wrong = []
    for i, (entry, row) in enumerate(zip(listed, found, strict=True)):
        at_its_place = entry["row"] == i if isinstance(entry["row"], int) else row["key"].endswith(entry["row"])
        if not at_its_place:
            wrong.append(f"{entry['id']}: found the row {row['key']}")
        elif entry["expect"] == "failed":
            if row.get("kind") != entry["failure"]:
                wrong.append(f"{entry['id']}: {row}")
        else:
            checked = {"num_frames": entry["frames"], "num_channels": entry["channels"]}
            checked["sample_rate"] = entry["sample_rate"]
            if {name: row.get(name) for name in checked} != checked or len(row["codes"][0]) != entry["frames"]:
                wrong.append(f"{entry['id']}: { ({k: v for k, v in row.items() if k != 'codes'}) }")
    return wrong


def test_every_dataset_has_its_listed_outcomes(cases, tmp_path):
    entries = entries_of(cases)
    model = Mimi.load(str(cases / "weights"), num_codebooks=4)
    datasets = [e for e in entries if e["kind"] == "dataset" and e.get("row") is None and e["id"] != "all_rows"]
    assert datasets
    wrong = []
    for dataset in datasets:
        out = tmp_path / dataset["id"]
        encode_here(job_of(cases, dataset, out), model)
        wrong += wrong_outcomes(entries, dataset, out)
    assert not wrong, "\n".join(wrong)


@pytest.mark.ray
def test_every_recording_has_its_listed_outcome_in_one_job(cases, tmp_path):
    entries = entries_of(cases)
    dataset = next(e for e in entries if e["id"] == "all_rows")
    out = tmp_path / "all_rows"
    run = Run(["submit", job_of(cases, dataset, out)], tmp_path / "log")
    try:
        assert run.wait() == 0, run.log.read_text()
    finally:
        run.kill_rest()
    wrong = wrong_outcomes(entries, dataset, out)
    assert not wrong, "\n".join(wrong)
