"""`decode`: which sound comes out, and what is refused in one line."""

import contextlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
import torch

from jobs import decoding
from jobs.cli import main
from jobs.clips import WeightsNote, load_mimi
from jobs.decoding import decode
from mimi import Mimi
from pipeline.errors import MimiJobsError
from pipeline.records import SAMPLE_RATE
from tests.jobs.making import make_run, publish, random_codes
from tests.mimi.tiny import FRAME, tiny_mimi

CODES = {"a": random_codes(5, k=2, seed=1), "left": random_codes(4, k=2, seed=2), "right": random_codes(4, k=2, seed=3)}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def mimi() -> Mimi:
    return load_mimi(WeightsNote("random:0"), 2)


@pytest.fixture
def same_mimi(mimi, monkeypatch):
    """Loading takes a second: the tests share one model."""
    monkeypatch.setattr(decoding, "load_mimi", lambda note, num_codebooks: mimi)


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A file of another tool: it says nothing of weights. One recording in two channels, and one key twice."""
    kind = pa.list_(pa.list_(pa.int64()))
    table = pa.table(
        {
            "key": ["a", "stereo", "stereo", "a"],
            "audio_codes": pa.array([CODES[name].tolist() for name in ("a", "left", "right", "left")], kind),
            "channel": pa.array([None, 0, 1, None], pa.int16()),
            "row": pa.array([0, 1, 1, 2], pa.int64()),
            "shard": pa.array([0, 0, 0, 0], pa.int32()),
            "duration": [0.37, 0.3, 0.3, 0.3],
        }
    )
    pq.write_table(table, tmp_path / "codes.parquet")
    return tmp_path / "codes.parquet"


def expected(mimi: Mimi, codes: np.ndarray) -> np.ndarray:
    return mimi.decode(torch.from_numpy(codes[None].astype(np.int64)))[0, 0].clamp(-1, 1).numpy()


def test_a_recording_decodes_to_what_the_model_gives_cut_to_its_own_length(foreign, tmp_path, mimi, same_mimi):
    done = decode(str(foreign), "a", str(tmp_path / "a.wav"), weights="random:0")
    sound, rate = soundfile.read(tmp_path / "a.wav", dtype="float32")
    assert rate == SAMPLE_RATE and len(sound) == round(0.37 * SAMPLE_RATE) and done.random_weights
    np.testing.assert_allclose(sound, expected(mimi, CODES["a"])[: len(sound)], atol=1e-4)
    assert "2 rows have the key" in done.notes[0]


def test_channels_that_are_rows_become_channels_of_the_file(foreign, tmp_path, mimi, same_mimi):
    done = decode(str(foreign), "stereo", str(tmp_path / "s.wav"), weights="random:0")
    sound, _ = soundfile.read(tmp_path / "s.wav", dtype="float32")
    assert done.num_channels == 2 and done.notes == ()
    for channel, name in enumerate(("left", "right")):
        np.testing.assert_allclose(sound[:, channel], expected(mimi, CODES[name])[: len(sound)], atol=1e-4)


def test_a_part_is_that_part_of_the_whole(foreign, tmp_path, same_mimi):
    decode(str(foreign), "a", str(tmp_path / "whole.wav"), weights="random:0")
    decode(str(foreign), "a", str(tmp_path / "part.wav"), weights="random:0", start=0.2, stop=0.3)
    whole, part = (soundfile.read(tmp_path / f"{name}.wav", dtype="float32")[0] for name in ("whole", "part"))
    np.testing.assert_allclose(part, whole[4800:7200], atol=1e-4)


def test_a_late_part_starts_a_context_earlier_and_no_more(monkeypatch):
    mimi = tiny_mimi()  # whose sound depends on 10 frames of codes and a few before it
    codes = np.random.default_rng(0).integers(0, 24, (2, 4, 60), np.uint16)
    whole = mimi.decode(torch.from_numpy(codes.astype(np.int64)))[:, 0].numpy()
    monkeypatch.setattr(decoding, "CONTEXT_FRAMES", 20)
    monkeypatch.setattr(decoding, "CHUNK_FRAMES", 7)
    steps = []
    step = Mimi.decode_step
    monkeypatch.setattr(Mimi, "decode_step", lambda self, c, s: steps.append(c.shape[2]) or step(self, c, s))
    start, stop = 45 * FRAME + 11, 48 * FRAME - 7
    late = np.concatenate(list(decoding.sound(mimi, codes, start, stop)))
    assert sum(steps) == 20 + 3 and max(steps) == 7  # a chunk at a time: in bounded memory
    np.testing.assert_allclose(late, whole[:, start:stop].T, atol=1e-6)


def test_weights_come_from_the_run_and_must_be_the_same(dataset, job_file, tmp_path, same_mimi):
    run = make_run(job_file, "model.num_codebooks=2")
    publish(run, run.shards()[0], [CODES["a"], CODES["left"]])
    done = decode(str(tmp_path / "out"), "0-0", str(tmp_path / "a.wav"))
    assert done.weights == "random:0" and done.random_weights
    with pytest.raises(MimiJobsError, match="aren't what they were"):
        load_mimi(WeightsNote("random:0", sha256="0" * 64), 2)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"key": "none"}, "no row has the key 'none'"),
        ({"weights": None}, "name them with --weights"),
        ({"output": "a.mp3"}, r"ends in \.wav"),
        ({"output": "no folder/a.wav"}, "make it first"),
        ({"output": "taken.wav"}, "is there already, choose another name or add --overwrite"),
        ({"start": 9.0}, "the recording has 0.37 s"),
        ({"start": 0.2, "stop": 0.1}, "must be after --start"),
        ({"start": -1.0}, "must be seconds of 0 or more"),
        ({"start": float("nan")}, "must be seconds of 0 or more"),
        ({"path": "nothing.parquet"}, "no such file or folder"),
    ],
)
def test_what_cant_be_decoded_is_one_line_and_leaves_no_file(foreign, tmp_path, monkeypatch, same_mimi, more, words):
    monkeypatch.chdir(tmp_path)
    Path("taken.wav").write_bytes(b"mine")
    arguments = {"path": str(foreign), "key": "a", "output": "out.wav", "weights": "random:0", **more}
    with pytest.raises(MimiJobsError, match=words) as caught:
        decode(**arguments)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["codes.parquet", "taken.wav"]
    assert Path("taken.wav").read_bytes() == b"mine"


def test_overwrite_replaces_the_file(foreign, tmp_path, same_mimi):
    target = tmp_path / "a.wav"
    target.write_bytes(b"old")
    decode(str(foreign), "a", str(target), weights="random:0", overwrite=True)
    assert soundfile.info(target).frames == round(0.37 * SAMPLE_RATE)


def test_the_command_says_loudly_that_weights_are_random(foreign, tmp_path, capsys, same_mimi):
    arguments = ["decode", str(foreign), "--key", "stereo", "-o", str(tmp_path / "a.wav"), "--weights", "random:0"]
    with contextlib.suppress(SystemExit):
        main(arguments)
    captured = capsys.readouterr()
    assert "RANDOM" in captured.err and "noise" in captured.err
    assert "0.30 s of stereo, 2 channels" in captured.out
