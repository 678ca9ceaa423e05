"""Every recording of the shared cases has the outcome that is listed for it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.audio import open_audio
from pipeline.errors import AudioError
from pipeline.records import FRAME_SAMPLES, Audio

MAKER = Path(__file__).resolve().parents[3] / "shared" / "cases" / "make_cases.py"


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, dict]]:
    if not MAKER.exists():
        pytest.skip(f"{MAKER} isn't there")
    folder = tmp_path_factory.mktemp("cases")
    subprocess.run([sys.executable, str(MAKER), str(folder)], check=True, capture_output=True)
    entries = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    return [(folder / e["input"], e) for e in entries if e["input"].startswith("files/")]


def outcome(audio: Audio) -> dict:
    try:
        with open_audio(audio, channel="mix") as stream:
            samples = sum(len(block) for block in stream)
            return {
                "expect": "codes",
                "frames": -(-samples // FRAME_SAMPLES),
                "sample_rate": stream.sample_rate,
                "channels": stream.num_channels,
            }
    except AudioError as error:
        return {"expect": "failed", "failure": error.kind}


@pytest.mark.parametrize("given", ["bytes", "path"])
def test_every_case_has_its_listed_outcome(cases, given):
    wrong = []
    for path, entry in cases:
        found = outcome(Audio(path.read_bytes(), None) if given == "bytes" else Audio(None, str(path)))
        wanted = {key: entry.get(key) for key in found}
        if found != wanted:
            wrong.append((entry["id"], found, wanted))
    assert len(cases) > 60
    assert not wrong
