"""What `inspect` counts, against plain Python over the same rows; and what it says of files that aren't right."""

import json
from collections import Counter
from math import log2
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs import code_files
from jobs.inspection import inspect, inspect_key
from pipeline.errors import RunDirError
from pipeline.records import FailedRow
from tests.jobs.making import make_run, publish, random_codes

Clips = list[np.ndarray]


def write(
    path: Path, clips: Clips, column: str = "codes", kind: pa.DataType | None = None, **columns: pa.Array
) -> Path:
    """[K, T] arrays as another tool would write them."""
    kind = kind or pa.list_(pa.list_(pa.uint16()))
    pq.write_table(pa.table({column: pa.array([clip.tolist() for clip in clips], kind), **columns}), path)
    return path


def problem_of(path: Path) -> str:
    result = inspect(str(path))
    (line,) = result.problems
    assert line.startswith(f"{path}")
    return line


def codes(k: int, frames: int, seed: int = 0) -> np.ndarray:
    return random_codes(frames, k, seed)


@st.composite
def clip_sets(draw: st.DrawFn) -> Clips:
    k = draw(st.integers(1, 5))
    shapes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=12))
    biggest = draw(st.sampled_from([1, 3, 2047]))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    return [rng.integers(0, biggest + 1, (k, frames), np.uint16) for frames in shapes]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(clip_sets(), st.integers(1, 40))
def test_counts_are_those_of_plain_python(tmp_path, clips, batch_codes):
    path = write(tmp_path / "codes.parquet", clips)
    before, code_files.BATCH_CODES = code_files.BATCH_CODES, batch_codes
    try:
        result = inspect(str(path))
    finally:
        code_files.BATCH_CODES = before
    k, frames = clips[0].shape[0], sum(clip.shape[1] for clip in clips)
    assert result.problems == []
    assert (result.rows, result.frames, result.num_codebooks) == (len(clips), frames, k)
    assert result.hours * 3600 * 12.5 == pytest.approx(frames)
    for use, counts in zip(
        result.codebooks, (Counter(c for x in clips for c in x[j].tolist()) for j in range(k)), strict=True
    ):
        shares = [n / frames for n in counts.values()]
        assert use.used == len(counts)
        assert use.entropy_bits == pytest.approx(-sum(share * log2(share) for share in shares), abs=1e-9)
        assert counts[use.most_frequent] == max(counts.values())
        assert use.most_frequent_share == pytest.approx(max(shares))
    assert result.duplicate_codes == len(clips) - len({clip.tobytes() + bytes([clip.shape[1]]) for clip in clips})
    assert result.lengths is not None
    lengths = sorted(clip.shape[1] for clip in clips)
    found = (result.lengths.min, result.lengths.median, result.lengths.max)
    assert [s * 12.5 for s in found] == pytest.approx([lengths[0], lengths[(len(lengths) + 1) // 2 - 1], lengths[-1]])
    assert sum(clips for _, _, clips in result.lengths.histogram) == len(clips)


def test_a_folder_of_another_tool_is_read_as_one_set(tmp_path):
    kinds = [
        pa.list_(pa.list_(pa.int64())),
        pa.large_list(pa.large_list(pa.int32())),
        pa.list_(pa.list_(pa.int16()), 2),
        pa.list_(pa.list_(pa.uint16(), 6), 2),
    ]
    for number, kind in enumerate(kinds):
        write(tmp_path / f"{number}.parquet", [codes(2, 6, number)], "audio_codes", kind)
    (tmp_path / "_hidden").mkdir()
    write(tmp_path / "_hidden" / "x.parquet", [codes(2, 6)])
    (tmp_path / "notes.txt").write_text("not read")
    result = inspect(str(tmp_path))
    assert (result.files, result.rows, result.frames, result.problems) == (4, 4, 24, [])
    assert result.weights is None and result.random_weights is None


def test_columns_beside_the_codes_are_summed_up(tmp_path):
    clips = [codes(2, 10, seed) for seed in range(4)]
    path = write(
        tmp_path / "x.parquet",
        clips,
        key=pa.array(["a", "b", "a", "c"]),
        duration=pa.array([1.0, 2.0, 3.0, 4.0]),
        sample_rate=pa.array([16000, 16000, 44100, None], pa.int32()),
        num_channels=pa.array([1, 2, 2, 2], pa.int16()),
    )
    result = inspect(str(path))
    assert result.hours == pytest.approx(10 / 3600)
    assert result.sample_rates == {16000: 2, 44100: 1}
    assert result.channels == {1: 1, 2: 3}
    assert (result.duplicate_keys, result.duplicate_key_example) == (1, "a")
    chunk = pq.read_metadata(path).row_group(0).column(0)
    assert (result.bytes, result.code_bytes) == (path.stat().st_size, chunk.total_compressed_size)
    assert result.bits_per_second == pytest.approx(chunk.total_compressed_size * 8 / (40 / 12.5))
    assert result.bits_per_code == pytest.approx(chunk.total_compressed_size * 8 / (40 * 2))


def test_channels_of_one_recording_are_no_duplicate_keys(tmp_path):
    keys, channel = pa.array(["a", "a", "b", "b"]), pa.array([0, 1, 0, 1], pa.int16())
    path = write(tmp_path / "x.parquet", [codes(2, 5, seed) for seed in range(4)], key=keys, channel=channel)
    assert inspect(str(path)).duplicate_keys == 0


def test_constant_clips_and_equal_codes_are_counted(tmp_path):
    silent = np.tile(np.array([[7], [3]], np.uint16), (1, 40))
    nearly = silent.copy()
    nearly[0, :2] = (1, 2)
    short = silent[:, :1]
    clips = [silent, nearly, silent, short, codes(2, 40), codes(2, 40)]
    result = inspect(str(write(tmp_path / "x.parquet", clips)))
    assert (result.constant_clips, result.duplicate_codes) == (3, 2)


# ---- files that aren't right


def test_frames_first_is_refused_with_a_word(tmp_path):
    clips = [codes(8, 20).T, codes(8, 31).T]
    assert "is [T][K] (lists of 8 codes, a list a frame), transpose it" in problem_of(
        write(tmp_path / "x.parquet", clips)
    )


def test_frames_first_of_clips_of_one_length_is_refused_too(tmp_path):
    clips = [codes(8, 125, 0).T, codes(8, 125, 1).T]
    assert "is [T][K]" in problem_of(write(tmp_path / "x.parquet", clips))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([[[1, 2], [3]]], "row 0 is ragged, its codebooks have 1, 2 frames"),
        ([[[1, 2], [3, 4]], [[1, 2], [3, 4, 5]]], "row 1 is ragged"),
        ([[[1, 2], [3, 4]], [[1, 2, 3]]], "row 1 has 1 codebooks and the rows before it 2"),
        ([[[1, 2], [3, 2048]]], "holds 2048, codes are 0 to 2047"),
        ([[[1, -1], [3, 4]]], "holds -1, codes are 0 to 2047"),
        ([[[1, 2]], None], "row 1 has no codes (null)"),
        ([[[1, 2], None]], "a codebook of codes is null"),
        ([[[1, None]]], "a code in codes is null"),
        ([[]], "its rows have 0 codebooks"),
        ([[[1, 2, 3]] * 40, [[1, 2]] * 40], "its rows have 40 codebooks"),
    ],
)
def test_codes_that_are_not_whole_are_one_line(tmp_path, rows, words):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"codes": pa.array(rows, pa.list_(pa.list_(pa.int32())))}), path)
    assert words in problem_of(path)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (pa.table({"text": ["a"], "n": [1]}), "no column named codes or audio_codes, it has text, n"),
        (pa.table({"codes": ["a"]}), "column codes holds string"),
        (pa.table({"codes": [[1, 2]]}), "column codes holds list<element: int64>"),
        (pa.table({"codes": [[[0.5]]]}), "column codes holds list<element: list<element: double>>"),
    ],
)
def test_other_columns_are_one_line(tmp_path, table, words):
    pq.write_table(table, tmp_path / "x.parquet")
    assert words in problem_of(tmp_path / "x.parquet")


@pytest.mark.parametrize("data", [b"", b"PAR1", b"not parquet at all", b"<html>" * 100])
def test_a_file_that_is_not_parquet_is_one_line(tmp_path, data):
    (tmp_path / "x.parquet").write_bytes(data)
    assert "not a parquet file, or cut short" in problem_of(tmp_path / "x.parquet")


def test_damage_anywhere_in_a_file_is_one_line_or_nothing(tmp_path):
    whole = write(tmp_path / "whole.parquet", [codes(4, 50, seed) for seed in range(20)]).read_bytes()
    rng = np.random.default_rng(0)
    path = tmp_path / "x.parquet"
    for _ in range(60):
        data = bytearray(whole)
        start = int(rng.integers(4, len(data) - 8))
        data[start : start + 4] = rng.bytes(4)
        path.write_bytes(data)
        assert len(inspect(str(path)).problems) <= 1
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        assert len(inspect(str(path)).problems) == 1


def test_a_bad_file_leaves_the_others_reported(tmp_path):
    good = [write(tmp_path / f"{n}.parquet", [codes(4, 9, n)]) for n in range(3)]
    good[1].write_bytes(good[1].read_bytes()[:-20])
    write(tmp_path / "other.parquet", [codes(8, 9)])
    result = inspect(str(tmp_path))
    assert (result.files, result.rows) == (2, 2)
    assert [line.split(": ")[0] for line in result.problems] == [str(good[1]), str(tmp_path / "other.parquet")]
    assert "has 8 codebooks, the files before it 4" in result.problems[1]


def test_an_empty_folder_is_one_line(tmp_path):
    assert inspect(str(tmp_path)).problems == [f"{tmp_path}: no parquet file in this folder"]


def test_a_folder_of_any_filesystem_is_read():
    fs = fsspec.filesystem("memory")
    table = pa.table({"codes": pa.array([codes(2, 6).tolist()], pa.list_(pa.list_(pa.uint16())))})
    try:
        with fs.open("/inspected/a/x.parquet", "wb") as file:
            pq.write_table(table, file)
        fs.pipe("/inspected/y.parquet", b"nothing")
        result = inspect("memory://inspected")
    finally:
        fs.rm("/inspected", recursive=True)
    assert (result.files, result.frames) == (1, 6)
    assert result.problems == ["memory://inspected/y.parquet: not a parquet file, or cut short"]


def test_nothing_there_is_an_error_naming_the_path(tmp_path):
    with pytest.raises(RunDirError, match="no such file or folder"):
        inspect(str(tmp_path / "gone"))
    with pytest.raises(RunDirError, match="can't be looked into"):
        inspect("nosuchscheme://x")


def test_a_file_without_rows_is_empty_and_right(tmp_path):
    result = inspect(str(write(tmp_path / "x.parquet", [])))
    assert (result.files, result.rows, result.problems, result.codebooks) == (1, 0, [], [])


# ---- runs


def test_a_run_is_its_committed_shards_with_failures_and_model(job_file):
    run = make_run(job_file)
    first, second = run.shards()
    failed = [
        FailedRow(0, 2, "bad-1", "decode", "unreadable", "an HTML page"),
        FailedRow(0, 3, "bad-2", "decode", "unreadable", "random bytes"),
        FailedRow(0, 4, "long", "filter", "too_long", "70 s"),
    ]
    publish(run, first, [random_codes(5, seed=1), random_codes(6, seed=2)], failed)
    result = inspect(run.storage.root)
    assert (result.rows, result.frames, result.unfinished_shards) == (2, 11, 1)
    assert [(f.kind, f.rows, f.example_key, f.example_message) for f in result.failures] == [
        ("unreadable", 2, "bad-1", "an HTML page")
    ]
    assert [(f.kind, f.rows) for f in result.skipped] == [("too_long", 1)]
    assert (result.weights, result.random_weights, result.precision) == ("random:0", True, "float32")
    assert result.fingerprint == run.manifest["fingerprint"]
    assert result.weights_sha256 == run.manifest["weights"]["sha256"]
    alone = inspect(run.storage.join("data", f"train-{first.index:05d}-of-00002.parquet"))
    assert (alone.rows, alone.weights, alone.random_weights, alone.precision) == (2, "random:0", True, "float32")
    publish(run, second, [])
    assert inspect(run.storage.root).unfinished_shards == 0


def test_a_run_whose_file_is_gone_says_so_and_goes_on(job_file, tmp_path):
    run = make_run(job_file)
    for shard in run.shards():
        publish(run, shard, [random_codes(5, seed=shard.index)])
    gone = tmp_path / "out" / "data" / "train-00001-of-00002.parquet"
    gone.unlink()
    result = inspect(run.storage.root)
    assert result.rows == 1
    (line,) = result.problems
    assert "data/train-00001-of-00002.parquet is missing" in line and "mimi-jobs resume" in line


def test_one_clip_is_found_by_its_key(job_file):
    run = make_run(job_file)
    clips = [random_codes(5, seed=1), random_codes(6, seed=2)]
    publish(run, next(iter(run.shards())), clips)
    (clip,), problems = inspect_key(run.storage.root, "0-1")
    assert problems == [] and clip.codes == clips[1].tolist()
    assert clip.columns["text"] == "words" and clip.columns["row"] == 1
    assert clip.file.endswith("/out/data/train-00000-of-00002.parquet")
    assert inspect_key(run.storage.root, "no such key") == ([], [])


def test_the_json_has_the_documented_names(tmp_path):
    path = write(tmp_path / "x.parquet", [codes(2, 10)])
    facts = json.loads(inspect(str(path)).to_json())
    assert set(facts) == {
        "version", "path", "files", "problems", "rows", "hours", "frames", "num_codebooks", "bytes", "code_bytes",
        "bits_per_second", "bits_per_code", "lengths", "sample_rates", "channels", "codebooks", "constant_clips",
        "duplicate_keys",
        "duplicate_key_example", "duplicate_codes", "failures", "skipped", "weights", "random_weights",
        "weights_sha256", "precision", "fingerprint", "unfinished_shards",
    }  # fmt: skip
    assert set(facts["codebooks"][0]) == {
        "codebook", "used", "entropy_bits", "most_frequent", "most_frequent_share"
    }  # fmt: skip
    assert set(facts["lengths"]) == {"min", "median", "p95", "max", "histogram"}


def test_a_duration_that_is_not_a_number_gives_way_to_the_frames(tmp_path):
    path = write(tmp_path / "x.parquet", [codes(2, 25)], duration=pa.array([float("nan")]))
    assert json.loads(inspect(str(path)).to_json())["hours"] == pytest.approx(2 / 3600)
