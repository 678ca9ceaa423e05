"""Every recipe of docs/loading.md is run as it stands, and examples/train_loop.py trains on what a run wrote."""

import importlib.util
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.records import FailedRow
from tests.jobs.making import make_run, publish, wav, write_dataset, write_job

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/loading.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TRAIN_LOOP = ROOT / "examples/train_loop.py"


def skewed_codes(frames: int, seed: int) -> np.ndarray:
    return np.minimum(np.random.default_rng(seed).exponential(3, (4, frames)), 2047).astype(np.uint16)


CODES = {
    f"{shard}-{row}": skewed_codes(5 + 3 * row + shard, 10 * shard + row) for shard in range(4) for row in range(3)
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a finished run in runs/demo: four shards of three clips, one failed row."""
    folder = tmp_path_factory.mktemp("loading")
    dataset = write_dataset(folder / "dataset", [[wav()] * 3] * 3 + [[wav()] * 4])
    job = write_job(folder, dataset, model={"num_codebooks": 4}, output={"path": str(folder / "runs/demo")})
    run = make_run(job)
    for shard in run.shards():
        failed = [FailedRow(3, 3, "3-3", "decode", "empty", "WAV without samples")] if shard.index == 3 else []
        publish(run, shard, [CODES[f"{shard.index}-{row}"] for row in range(3)], failed)
    run.finish()
    return folder


@pytest.fixture
def here(folder, monkeypatch) -> Path:
    from datasets import config

    monkeypatch.chdir(folder)
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", folder / "cache")
    return folder


def run_block(marker: str) -> dict[str, Any]:
    """The names that the one block with this text leaves."""
    (block,) = [block for block in BLOCKS if marker in block]
    names: dict[str, Any] = {}
    exec(compile(block, "docs/loading.md", "exec"), names)
    return names


def test_every_block_of_the_page_is_run_here():
    tests = Path(__file__).read_text()
    markers = re.findall(r'run_block\("([^"]+)"\)', tests)
    assert len(BLOCKS) == len(markers)
    assert [sum(marker in block for marker in markers) for block in BLOCKS] == [1] * len(BLOCKS)


def test_datasets_loads_codes_as_tensors_and_streams(here):
    names = run_block("streamed = ")
    assert names["codes"].dtype == torch.int64
    np.testing.assert_array_equal(names["codes"].numpy(), CODES["0-0"])
    assert names["first"]["codes"] == CODES["0-0"].tolist() and names["rows"].num_rows == len(CODES)


def test_datasets_loads_failed_rows(here, capsys):
    run_block("failed = ")
    assert capsys.readouterr().out == "3-3 empty WAV without samples\n"


def test_read_codes_gives_arrays(here, capsys):
    names = run_block("keys=[key]")
    assert capsys.readouterr().out.count("uint16") == len(CODES)
    np.testing.assert_array_equal(names["wanted"]["3-2"], CODES["3-2"])


def test_polars_scans(here):
    names = run_block("import polars")
    np.testing.assert_array_equal(names["codes"], CODES["0-0"])
    assert names["clips"]["num_frames"].to_list() == sorted(codes.shape[1] for codes in CODES.values())


def test_pandas_reads(here):
    names = run_block("import pandas")
    assert names["codes"].dtype == np.uint16
    np.testing.assert_array_equal(names["codes"], CODES["0-0"])
    assert names["hours"] == pytest.approx(sum(codes.shape[1] for codes in CODES.values()) * 0.08 / 3600)


def test_duckdb_counts_entries(here):
    counts = Counter(int(code) for codes in CODES.values() for code in codes[0])
    assert run_block("import duckdb")["most"] == sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def test_codes_become_sound(here):
    torch.set_num_threads(1)
    assert run_block("mimi.decode(")["sound"].shape == (1, 1, CODES["0-0"].shape[1] * 1920)


# ---- the training loop


@pytest.fixture(scope="module")
def loop() -> Any:
    spec = importlib.util.spec_from_file_location("train_loop", TRAIN_LOOP)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@given(st.integers(1, 9), st.integers(1, 20))
def test_delaying_and_flattening_can_be_undone(loop, num_codebooks, frames):
    codes = torch.randint(0, 2048, (num_codebooks, frames))
    tokens = loop.flattened(loop.delayed(codes))
    assert len(tokens) == num_codebooks * (frames + num_codebooks - 1)
    assert torch.equal(loop.undelayed(loop.unflattened(tokens, num_codebooks)), codes)


def test_codebook_k_comes_k_frames_later(loop):
    delayed = loop.delayed(torch.tensor([[1, 2], [3, 4]]))
    assert delayed.tolist() == [[1, 2, loop.PAD], [loop.PAD, 3, 4]]
    assert loop.flattened(delayed).tolist() == [1, 2049 + 2048, 2, 2049 + 3, 2048, 2049 + 4]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_every_clip_comes_once_an_epoch_over_all_workers_in_another_order_each_time(loop, here, monkeypatch, workers):
    clips = loop.Clips("runs/demo", buffer=4)
    orders = []
    for epoch in range(2):
        clips.epoch = epoch
        seen = []
        for worker in range(workers):
            monkeypatch.setattr(loop, "get_worker_info", lambda w=worker: SimpleNamespace(id=w, num_workers=workers))
            seen += [str(codes.tolist()) for codes in clips]
        assert sorted(seen) == sorted(str(codes.tolist()) for codes in CODES.values())
        orders.append(seen)
    assert orders[0] != orders[1]


def test_long_clips_are_cut(loop, here):
    assert {codes.shape[1] for codes in loop.Clips("runs/demo", max_frames=4)} == {4}


def test_the_loop_learns(loop, here):
    torch.set_num_threads(1)
    losses = loop.train("runs/demo", steps=25)
    assert len(losses) == 25 and losses[-1] < losses[0] - 1


def test_the_example_runs_with_a_worker_process(here):
    command = [sys.executable, str(TRAIN_LOOP), "runs/demo", "--steps", "2", "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "after 2 steps" in done.stdout
