"""The benchmark command: what it prints follows from what it measured, and its contenders really encode."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from jobs import bench_agreement, bench_job, bench_profile, peers
from jobs.bench import Contender, Race, bench, race
from jobs.bench_advice import Rates, advice, report
from jobs.bench_agreement import Agreement, agreement
from jobs.bench_clips import Clips, clips_of_folder, made_clips, utterance
from jobs.bench_command import BenchOptions, run_bench
from jobs.bench_engine import Layout, our_encoder
from jobs.bench_job import candidates
from jobs.resources import Machine, Resources
from mimi import Mimi
from mimi.config import MimiConfig
from mimi.export import write_checkpoint
from mimi.layouts import all_shapes
from mimi.random_weights import random_tensors
from pipeline.errors import ConfigError
from tests.jobs.making import wav, write_dataset, write_job

SMALL = MimiConfig(
    num_filters=2,
    dimension=16,
    num_layers=1,
    num_heads=2,
    feed_forward=16,
    context=20,
    codebook_size=16,
    codebook_dim=8,
    num_codebooks=8,
)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint with the published frame and little else, on disk."""
    tensors = random_tensors(SMALL, 0, all_shapes(SMALL))
    return str(write_checkpoint(tmp_path_factory.mktemp("weights"), tensors, "transformers", SMALL))


@pytest.fixture
def few() -> Clips:
    return Clips("3 clips", [utterance(samples, seed) for seed, samples in enumerate((4000, 50_000, 1))])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch):
    """Short measurements; and threads as they were, since a benchmark sets them for the whole process."""
    monkeypatch.setattr("jobs.bench.PRODUCT_SIZE", 64)
    monkeypatch.setattr(bench_profile, "PROFILE_SECONDS", 2.0)
    monkeypatch.setattr(bench_job, "WRITE_SECONDS", 20.0)
    monkeypatch.setattr(bench_job, "ENCODE_SECONDS", 2.0)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def still(name: str, rates: list[float], ours: bool = False, codes: Sequence[np.ndarray] = ()) -> Contender:
    return Contender(name, lambda clips: [], ours, rates, [rate / 34 for rate in rates], list(codes))


# ---- the race


def test_the_last_line_compares_medians_with_the_fastest_peer():
    ours = still("ours", [20.0, 26.0, 24.0], ours=True)
    other = still("ours, another way", [40.0] * 3, ours=True)
    peers_ = still("slow", [9.0, 8.0, 7.0]), still("fast", [11.0, 12.0, 90.0])
    assert Race([ours, other, *peers_], [187.0], 2).verdict() == "2.00 times the fastest peer, 71% of sgemm"
    assert Race([ours], [187.0], 2).verdict() == "24.0 times real time, 71% of sgemm"


def test_the_table_counts_codes_unlike_ours():
    ours = still("ours", [20.0], ours=True, codes=[np.zeros((2, 3))])
    peer = still("peer", [10.0], codes=[np.array([[0, 0, 1], [0, 2, 0]])])
    lines = list(Race([peer, ours][::-1], [187.0], 2).table())
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["ours", "peer", "the limit: 187 GFLOP/s (187 to 187)"]
    assert lines[3].split("|")[5].strip() == "2 of 6"


def test_contenders_take_turns(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("jobs.bench.sgemm_rate", lambda: 100.0)
    order = []
    contenders = [Contender(name, lambda clips, name=name: order.append(name) or []) for name in "ab"]
    result = race(contenders, [np.zeros(24_000, np.float32)], repeats=2, threads=1)
    assert order == ["a", "b", *"abab"]
    assert len(result.sgemm) == 5
    assert all(len(contender.rates) == len(contender.shares) == 2 for contender in contenders)


@pytest.mark.parametrize("layout", [Layout(1, 1, 1, 25), Layout(2, 1, 1, 3), Layout(1, 2, 3, 10)])
def test_our_contender_gives_each_clip_its_codes(weights: str, few: Clips, layout: Layout):
    mimi = Mimi.load(weights)
    with our_encoder(mimi, layout) as encode:
        codes = encode(few.samples)
    for clip, ours in zip(few.samples, codes, strict=True):
        assert np.array_equal(ours, mimi.encode(torch.from_numpy(clip)[None, None])[0].numpy())


def test_bench_ends_with_its_verdict(weights: str, few: Clips):
    lines: list[str] = []
    result = bench(few, weights, threads=1, repeats=1, say=lines.append)
    assert lines[-1] == result.verdict()
    assert lines[-1].endswith("of sgemm")
    assert any(line.startswith("| transformer |") for line in lines)


@pytest.mark.reference
def test_a_peer_of_the_same_weights_gives_the_same_codes(weights: str, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("transformers")
    real = peers.find_spec
    monkeypatch.setattr(peers, "find_spec", lambda name: real(name) if name == "transformers" else None)
    clips = [utterance(samples, seed) for seed, samples in enumerate((20_000, 9000, 30_001))]
    with peers.Checkpoints(weights) as checkpoints:
        found = list(peers.installed_peers(checkpoints, 8, 2, batches=True))
    assert [peer.name for peer in found] == [
        "transformers, one by one",
        "transformers, 2 clips at once",
        "transformers, sorted batch of 8",
    ]
    right = [Mimi.load(weights).encode(torch.from_numpy(clip)[None, None])[0].numpy() for clip in clips]
    for peer in found:
        for theirs, ours in zip(peer.encode(clips), right, strict=True):
            assert theirs.shape == ours.shape
            assert (theirs != ours).mean() < 0.02


def test_peers_that_are_not_installed_are_named_with_a_remedy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    lines = peers.missing_peers()
    assert [line.split(":")[0] for line in lines] == ["transformers", "moshi", "rustymimi"]
    assert all("pip install" in line and "\n" not in line for line in lines)
    assert list(peers.installed_peers(peers.Checkpoints("random:0"), 8, 2, batches=True)) == []


# ---- the clips


def test_the_made_clips_are_25_utterances_of_180_seconds():
    clips = made_clips()
    assert (len(clips.samples), clips.seconds) == (25, 180.0)
    assert all(0.05 < np.abs(clip).max() < 1 for clip in clips.samples)


def test_a_folder_gives_its_recordings_and_names_what_is_none(tmp_path: Path):
    (tmp_path / "a.wav").write_bytes(wav(0.5))
    (tmp_path / "b.txt").write_text("no sound")
    clips = clips_of_folder(str(tmp_path))
    assert clips.seconds == pytest.approx(0.5)
    assert [line.startswith(f"{tmp_path / 'b.txt'}: ") for line in clips.skipped] == [True]
    (tmp_path / "a.wav").unlink()
    with pytest.raises(ConfigError, match="--audio: holds no recording"):
        clips_of_folder(str(tmp_path))


# ---- the profile


def test_the_work_by_layer_adds_up_to_the_published_figure():
    work = bench_profile.nominal_gflop(MimiConfig(), 8)
    assert sum(work.values()) == pytest.approx(5.5, rel=0.01)
    assert sum(value for name, value in work.items() if name.startswith("seanet")) == pytest.approx(4.0, rel=0.01)


def test_the_profile_times_each_layer_and_leaves_the_model_as_it_was(weights: str):
    mimi = Mimi.load(weights)
    before = dict(vars(mimi._encoder.seanet)), dict(vars(mimi._encoder))
    with bench_profile.stopwatch(mimi) as watch:
        mimi.encode(torch.zeros(1, 1, 20_000))
    assert bench_profile.nominal_gflop(SMALL, 8).keys() <= watch.seconds.keys()
    assert all(seconds >= 0 for seconds in watch.seconds.values())
    assert (vars(mimi._encoder.seanet), vars(mimi._encoder)) == before


# ---- agreement


def test_agreement_tells_first_differences_from_those_that_follow():
    reference = np.array([[1, 1, 1], [2, 2, 2], [3, 3, 3]])
    result = Agreement("bfloat16", 1.0, 1.0)
    result.add(reference, np.array([[1, 0, 1], [2, 0, 2], [3, 3, 0]]))
    result.add(reference, reference)
    assert (result.codes, result.differ.tolist(), result.first.tolist()) == (6, [1, 1, 1], [1, 0, 1])
    assert result.summary() == "bfloat16: 3 of 18 codes (16.7%) aren't float32's"


def test_agreement_of_a_precision_with_itself_is_whole(weights: str, few: Clips, monkeypatch: pytest.MonkeyPatch):
    real = bench_agreement.load
    monkeypatch.setattr(bench_agreement, "load", lambda w, r, precision, k, d: real(w, r, "float32", k, d))
    lines: list[str] = []
    for result in agreement(few, weights, threads=1, say=lines.append):
        assert result.differ.tolist() == [0] * 8
        assert result.codes == 3 + 27 + 1
    assert lines[-1].endswith("0 of 248 codes (0.0%) aren't float32's")


def test_agreement_of_bfloat16_finds_differences(weights: str, few: Clips):
    (result, *_) = agreement(few, weights, num_codebooks=4, threads=1, say=lambda line: None)
    assert result.precision == "bfloat16"
    assert len(result.differ) == 4
    assert 0 < result.differ.sum() < 4 * result.codes


# ---- a job's stages


def test_a_jobs_stages_are_measured_and_nothing_is_written(tmp_path: Path, weights: str):
    dataset = write_dataset(tmp_path / "data", [[wav(1.0), b"noise", wav(0.5)], [wav(0.3)]])
    job = write_job(tmp_path, dataset, model={"weights": weights, "device": "cpu"})
    lines: list[str] = []
    rates = bench_job.bench_job(job, say=lines.append)
    assert min(rates.read, rates.decode, rates.encode, rates.write) > 0
    assert any("the first 3 rows" in line for line in lines)
    assert any(line.startswith("0-1: ") for line in lines)  # the row that is none
    assert any(line.startswith("bottleneck: ") for line in lines)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "job.yaml"]


def test_a_job_without_a_row_that_decodes_is_refused_in_one_line(tmp_path: Path, weights: str):
    dataset = write_dataset(tmp_path / "data", [[b"noise"]])
    job = write_job(tmp_path, dataset, model={"weights": weights})
    with pytest.raises(ConfigError, match=r"^input\.path: none of the first 1 rows can be decoded"):
        bench_job.bench_job(job, say=lambda line: None)


def test_on_a_cpu_stages_share_the_cores():
    rates = Rates(read=1000, decode=100, encode=40, write=1000, encode_cores=2)
    assert rates.costs()["encode"] == 0.05
    assert rates.whole(2) == pytest.approx(2 / (0.05 + 0.01 + 0.002))
    assert rates.bottleneck(2) == "encode"


@pytest.mark.parametrize(("cpus", "bottleneck", "whole"), [(4, "decode", 400), (64, "encode", 3000)])
def test_beside_a_gpu_the_cores_are_the_bottleneck_until_there_are_enough(cpus: int, bottleneck: str, whole: float):
    rates = Rates(read=1e9, decode=100, encode=3000, write=1e9, encode_cores=0)
    assert rates.bottleneck(cpus) == bottleneck
    assert rates.whole(cpus) == pytest.approx(whole, rel=0.01)
    assert rates.cores_for_gpu() == 31


def test_advice_names_keys_as_the_command_line_takes_them():
    chosen, other = Layout(2, 1, 1, 25), Layout(1, 2, 4, 50)
    measured = {chosen: still("chosen", [20.0]), other: still("other", [30.0])}
    rates = Rates(1000, 100, 20, 1000, 2)
    lines = list(advice(rates, measured, Machine(2, 0)))
    keys = "model.slots=4 model.chunk_seconds=4 ray.actors=1 ray.cpus_per_actor=2"
    assert lines[1] == f"set {keys}: 1.50 times as fast as the job's own setting"
    measured[other].rates[0] = 20.5
    assert "are right as they are: model.slots=1 " in list(advice(rates, measured, Machine(2, 0)))[1]
    assert any(line.startswith("| encode, chosen | 20.0 ") for line in report(rates, measured, 2))


def test_the_jobs_own_setting_is_tried_first_and_each_once():
    tried = candidates(Resources("cpu", 1, 25, 1, 2, 1.0, 0.0), 2)
    assert tried[0] == Layout(2, 1, 1, 25)
    assert len(set(tried)) == len(tried) > 3
    assert candidates(Resources("cuda", 64, 25, 4, 1, 4.0, 1.0), 4)[0] == Layout(1, 4, 64, 25)


# ---- the command


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (BenchOptions("job.yaml", peers=True), "--peers"),
        (BenchOptions("job.yaml", audio="x"), "--audio"),
        (BenchOptions("job.yaml", weights="random:0"), "--weights"),
        (BenchOptions(batches=True), "--batches"),
        (BenchOptions(agreement=True, peers=True), "--agreement"),
        (BenchOptions(weights="./none"), "--weights"),
    ],
)
def test_what_does_not_go_together_is_refused(options: BenchOptions, named: str):
    with pytest.raises(ConfigError) as caught:
        run_bench(options, say=lambda line: None)
    assert caught.value.problems[0].startswith(f"command line: {named}: ")


def test_no_benchmark_imports_ray():
    modules = ["bench", "bench_job", "bench_agreement", "bench_command", "bench_profile", "peers"]
    code = "import sys; " + "; ".join(f"import jobs.{name}" for name in modules)
    code += "; import pipeline.engine, pipeline.writer, jobs.checks; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
