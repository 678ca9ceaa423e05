"""The shared job files that must be refused: exit status 2, the words they must say, nothing written."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.cli import main

MAKER = Path(__file__).resolve().parents[3] / "shared" / "cases" / "make_cases.py"
JOBS = [
    *("kv_repeat_2", "kv_repeat_0", "kv_repeat_8", "num_codebooks_0", "num_codebooks_33", "unknown_key"),
    *("no_input_path", "dataset_gone", "audio_column_gone", "weights_gone", "three_errors"),
    *("checkpoint_heads", "checkpoint_kv_repeat"),
]

pytestmark = pytest.mark.skipif(not MAKER.is_file(), reason="shared/cases is not beside the repository")


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cases")
    subprocess.run([sys.executable, str(MAKER), str(out)], check=True, capture_output=True, timeout=300)
    return out


@pytest.mark.parametrize("name", JOBS)
def test_the_job_is_refused_as_listed(cases, name, capsys):
    listed = {entry["id"]: entry for entry in json.loads((cases / "cases.json").read_text()) if entry["kind"] == "job"}
    assert {f"job/{job}" for job in JOBS} == set(listed)
    entry = listed[f"job/{name}"]
    with pytest.raises(SystemExit) as end:
        main(["submit", str(cases / entry["input"])])
    out, err = capsys.readouterr()
    assert end.value.code == 2
    assert out == ""
    assert [word for word in entry["words"] if word not in err] == []
    assert len(err.splitlines()) == (3 if name == "three_errors" else 1)
    assert not (cases / "runs").exists()
