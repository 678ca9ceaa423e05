"""`verify`: a sound run is said to be; each kind of damage gets its line, naming the file, and never a traceback."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.verification import verify
from pipeline.errors import RunDirError
from pipeline.marker import Marker, PublishedFile, marker_name
from pipeline.records import FailedRow
from pipeline.run_dir import RunDir
from tests.jobs.making import make_run, publish, random_codes

DATA = "data/train-00000-of-00002.parquet"
ERRORS = "errors/train-00001-of-00002.parquet"


@pytest.fixture
def run(job_file: str) -> RunDir:
    """Two shards of two rows: one with both encoded, one with a failed row."""
    run = make_run(job_file)
    first, second = run.shards()
    publish(run, first, [random_codes(3, seed=1), random_codes(9, seed=2)])
    publish(run, second, [random_codes(4, seed=3)], [FailedRow(1, 1, "1-1", "decode", "unreadable", "random bytes")])
    run.finish()
    return run


def root(run: RunDir) -> Path:
    return Path(run.storage.root)


def marker_of(run: RunDir, shard: int) -> Marker:
    return run.markers()[shard]


def remark(run: RunDir, marker: Marker) -> None:
    """Write the marker anew, as a program that gets its sums wrong would."""
    (root(run) / marker_name(marker.shard)).write_bytes(marker.to_json())


def rewrite(run: RunDir, name: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change a file's rows, and let its marker say that these are its bytes."""
    path = root(run) / name
    table = pq.read_table(path, memory_map=False)
    pq.write_table(change(table), path)
    data = path.read_bytes()
    new = PublishedFile(name, len(data), hashlib.sha256(data).hexdigest())
    shard = int(name.split("-")[1])
    marker = marker_of(run, shard)
    remark(run, replace(marker, files=tuple(new if file.path == name else file for file in marker.files)))


def with_values(name: str, change: Callable[[list], list]) -> Callable[[pa.Table], pa.Table]:
    def changed(table: pa.Table) -> pa.Table:
        field = table.schema.field(name)
        values = pa.array(change(table.column(name).to_pylist()), field.type)
        return table.set_column(table.schema.get_field_index(name), field, values)

    return changed


def problems(run: RunDir) -> list[str]:
    result = verify(run.storage.root)
    assert not result.sound and "NOT sound" in result.verdict
    assert all("\n" not in line for line in result.problems)
    return result.problems


def test_a_sound_run_is_said_to_be(run):
    result = verify(run.storage.root)
    assert result.problems == [] and result.sound
    assert (result.shards, result.shards_done, result.files) == (2, 2, 3)
    assert (result.rows_read, result.encoded, result.failed, result.clips, result.frames) == (4, 3, 1, 3, 16)
    assert "sound: 2 shards" in result.verdict and "\n" not in result.verdict
    assert json.loads(result.to_json())["sound"] is True


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunDirError, match="is not a run"):
        verify(str(tmp_path))


def test_a_changed_byte_is_found_by_the_hash(run):
    path = root(run) / DATA
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    (line,) = problems(run)
    assert line.startswith(str(path)) and "sha256" in line and "was changed" in line


def test_a_missing_file_and_one_cut_short_get_a_line_each(run):
    (root(run) / ERRORS).unlink()
    path = root(run) / DATA
    path.write_bytes(path.read_bytes()[:-100])
    lines = problems(run)
    assert len(lines) == 2
    assert str(path) in lines[0] and "its marker says" in lines[0]
    assert str(root(run) / ERRORS) in lines[1] and "is missing" in lines[1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_values("codes", lambda rows: [*rows[:1], [[5000] * 9] * 8]), "codes holds 5000"),
        (with_values("codes", lambda rows: [*rows[:1], [[1] * 9] * 7]), "codes isn't [K][T]"),
        (with_values("codes", lambda rows: [row[:4] for row in rows]), "has 4 codebooks"),
        (with_values("codes", lambda rows: [*rows[:1], [[1] * 9] * 7 + [[1]]]), "ragged"),
        (with_values("num_frames", lambda rows: [3, 8]), "row 1 has 9 frames, num_frames says 8"),
        (with_values("duration", lambda rows: [rows[0], 2.0]), "row 1 has 9 frames, 2 s of sound are 25"),
        (with_values("duration", lambda rows: [rows[0], float("nan")]), "row 1 has 9 frames"),
        (with_values("row", lambda rows: [0, 0]), "row 0 is in it twice"),
        (with_values("row", lambda rows: [1, 0]), "aren't in source order"),
        (with_values("row", lambda rows: [0, 7]), "holds row 7, the shard has rows 0 to 1"),
        (with_values("shard", lambda rows: [0, 1]), "rows of another shard"),
        (lambda table: table.drop_columns(["text"]), "another schema than the run: text"),
        (with_values("key", lambda rows: rows[:2]), None),
        (
            lambda table: table.set_column(2, "num_frames", table.column("num_frames").cast(pa.int64())),
            "num_frames holds int64",
        ),
        (lambda table: table.replace_schema_metadata({}), "is of another job"),
    ],
)
def test_rows_that_cant_be_right_are_found_though_the_hash_is(run, change, words):
    rewrite(run, DATA, change)
    if words is None:
        assert verify(run.storage.root).sound  # rewriting alone is no damage
        return
    lines = problems(run)
    assert lines[0].startswith(str(root(run) / DATA)) and words in lines[0], lines


def test_a_row_that_is_both_encoded_and_failed_is_found(run):
    rewrite(run, ERRORS, with_values("row", lambda rows: [0]))
    (line,) = problems(run)
    assert line.startswith(str(root(run) / "_state/00001.json")) and "row 0 is both" in line


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rows_read": 3}, "2 encoded, 0 failed, 0 skipped are 2 rows, it says 3 were read"),
        ({"rows_read": 3, "encoded": 3}, "the plan has 2"),
        ({"rows_read": 1, "encoded": 1}, "says 1 rows encoded, its files hold 2"),
        ({"clips": 5}, "says 5 rows of codes, its files hold 2"),
        ({"frames": 13}, "says 13 frames, its files hold 12"),
        ({"audio_seconds": 1.0}, "says 1.000 s of audio"),
        ({"failures": {"empty": 1}}, "lists 1 by kind"),
    ],
)
def test_sums_that_dont_add_up_are_found(run, changes, words):
    remark(run, replace(marker_of(run, 0), **changes))
    lines = problems(run)
    assert any(words in line for line in lines), lines
    assert all(line.startswith(run.storage.root) for line in lines)


def test_failures_of_another_kind_than_listed_are_found(run):
    remark(run, replace(marker_of(run, 1), failures={"empty": 1}))
    (line,) = problems(run)
    assert "says failures empty 1, errors/ holds unreadable 1" in line


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"shard": 0}', b"\xff\xfe"])
def test_a_damaged_marker_is_found(run, content):
    (root(run) / marker_name(0)).write_bytes(content)
    lines = problems(run)
    assert any(line.startswith(str(root(run) / marker_name(0))) and "isn't a marker" in line for line in lines)
    assert any("1 of 2 shards aren't finished" in line for line in lines)


@pytest.mark.parametrize("name", ["_state/plan.parquet", "_state/schema.arrow"])
@pytest.mark.parametrize("content", [None, b"", b"garbage " * 20])
def test_a_damaged_record_of_the_run_is_found(run, name, content):
    path = root(run) / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    lines = problems(run)
    assert any(line.startswith(str(path)) for line in lines), lines


def test_files_that_no_marker_names_are_found(run):
    stray = root(run) / "data/train-00005-of-00002.parquet"
    stray.write_bytes((root(run) / DATA).read_bytes())
    (line,) = problems(run)
    assert line == f"{stray}: belongs to no finished shard, move it away"


def test_an_unfinished_run_is_not_sound(job_file):
    run = make_run(job_file)
    publish(run, run.shards()[0], [random_codes(3), random_codes(9)])
    (line,) = problems(run)
    assert "1 of 2 shards aren't finished, run `mimi-jobs resume`" in line


def test_files_of_random_bytes_never_end_in_a_traceback(run):
    rng = np.random.default_rng(0)
    for name in (DATA, ERRORS, "data/train-00001-of-00002.parquet"):
        (root(run) / name).write_bytes(rng.bytes(3000))
    assert len(problems(run)) == 3


def test_text_that_is_not_utf8_is_damage_like_any_other(run):
    from jobs.inspection import inspect
    from jobs.locations import find_code_files
    from jobs.report import failed_rows

    def spoil(table: pa.Table) -> pa.Table:
        kind = pa.StringArray.from_buffers(
            1, pa.py_buffer(np.array([0, 2], np.int32).tobytes()), pa.py_buffer(b"\xfb\x84")
        )
        return table.set_column(table.schema.get_field_index("kind"), "kind", kind)

    rewrite(run, ERRORS, spoil)
    (line,) = problems(run)
    assert line.startswith(str(root(run) / ERRORS)) and "utf-8" in line
    (line,) = inspect(run.storage.root).problems
    assert line.startswith(str(root(run) / ERRORS))
    assert failed_rows(find_code_files(run.storage.root)).rows == []


@pytest.mark.parametrize("seed", range(20))
def test_bytes_changed_anywhere_never_end_in_a_traceback(run, seed):
    rng = np.random.default_rng(seed)
    paths = [path for path in sorted(root(run).rglob("*")) if path.is_file() and path.name != "job.json"]
    path = paths[seed % len(paths)]
    data = np.frombuffer(path.read_bytes(), np.uint8).copy()
    data[rng.integers(0, len(data), 5)] = rng.integers(0, 256, 5)
    path.write_bytes(data.tobytes())
    if path.parent.name in ("data", "errors"):  # with a marker that knows no better, so that the content is read
        name = str(path.relative_to(root(run)))
        marker = marker_of(run, int(path.name.split("-")[1]))
        new = PublishedFile(name, len(data), hashlib.sha256(data.tobytes()).hexdigest())
        remark(run, replace(marker, files=tuple(new if file.path == name else file for file in marker.files)))
    odd = [line for line in verify(run.storage.root).problems if "\n" in line or not line.startswith(run.storage.root)]
    assert odd == []


@pytest.mark.parametrize("damaged", [False, True])
def test_the_command_ends_with_one_verdict_and_a_status_that_says_the_same(run, capsys, damaged):
    from jobs.cli import main

    if damaged:
        (root(run) / DATA).unlink()
    with pytest.raises(SystemExit) as ended:
        main(["verify", run.storage.root])
    said = capsys.readouterr()
    assert ended.value.code == int(damaged)
    assert len(said.out.splitlines()) == 1 and ("NOT sound" in said.out) is damaged
    assert len(said.err.splitlines()) == int(damaged)


# ---- encoded again


@pytest.fixture(scope="module")
def mimi():
    import torch

    from mimi import Mimi

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Mimi.load("random:0", num_codebooks=2)
    torch.set_num_threads(before)


@pytest.fixture
def encoded(job_file: str, mimi) -> RunDir:
    """The run of the dataset as a worker would leave it: rows 0-0, 0-1, 1-0 encoded, 1-1 unreadable."""
    import torch

    from jobs.originals import Originals

    run = make_run(job_file, "model.num_codebooks=2")
    originals = Originals.of(run)
    for shard, rows in zip(run.shards(), (2, 1), strict=True):
        codes = []
        for row in range(rows):
            sound = originals.samples(originals.row(shard.index, row), None)
            codes.append(mimi.encode(torch.from_numpy(sound)[None, None])[0].numpy().astype(np.uint16))
        failed = [FailedRow(1, 1, "1-1", "decode", "unreadable", "random bytes")] if shard.index else []
        publish(run, shard, codes, failed)
    for shard in (0, 1):  # what `publish` writes for these is of no source
        rewrite(run, f"data/train-0000{shard}-of-00002.parquet", from_source)
    return run


def from_source(table: pa.Table) -> pa.Table:
    table = with_values("text", lambda rows: [f"text of {key}" for key in table.column("key").to_pylist()])(table)
    return with_values("number", lambda rows: table.column("row").to_pylist())(table)


def test_rows_encoded_again_from_their_source_are_the_nearest_entries(encoded):
    result = verify(encoded.storage.root, sample=10, seed=0)
    assert result.problems == []
    assert [(clip.key, clip.beyond) for clip in result.sampled] == [("0-0", 0), ("0-1", 0), ("1-0", 0)]
    assert sum(clip.codes for clip in result.sampled) == 2 * result.frames
    assert "3 rows encoded again from their source, 0 of" in result.verdict


def test_one_wrong_code_is_found_though_hash_and_sums_agree(encoded):
    def change(rows: list) -> list:
        rows[1][1][2] = (rows[1][1][2] + 1) % 2048
        return rows

    rewrite(encoded, DATA, with_values("codes", change))
    assert verify(encoded.storage.root).sound
    result = verify(encoded.storage.root, sample=3)
    (line,) = result.problems
    assert line.startswith(str(root(encoded) / DATA)) and "row 1 (0-1)" in line
    assert "aren't the nearest entry" in line and "first in codebook 1, frame 2" in line


def test_of_a_long_recording_a_window_is_judged_after_all_that_it_depends_on(encoded, monkeypatch):
    from jobs import reencoding

    asked = []
    samples = reencoding.Originals.samples
    monkeypatch.setattr(reencoding, "WINDOW_FRAMES", 2)
    monkeypatch.setattr(reencoding, "CONTEXT_FRAMES", 4)
    monkeypatch.setattr(
        reencoding.Originals,
        "samples",
        lambda self, row, channel, *span: asked.append(span) or samples(self, row, channel, *span),
    )
    result = verify(encoded.storage.root, sample=3, seed=0)
    clip = next(clip for clip in result.sampled if clip.key == "0-1")  # of 7 frames
    assert clip.frames == 2 and clip.codes == 4
    start = max(0, clip.first_frame - 4) * 1920
    assert (start, None if clip.first_frame == 5 else (clip.first_frame + 2) * 1920) in asked


def test_rows_that_are_not_their_sources_are_found(encoded):
    rewrite(encoded, DATA, with_values("text", lambda rows: ["other", rows[1]]))
    lines = verify(encoded.storage.root, sample=3).problems
    assert len(lines) == 1 and "row 0 (0-0): its column text isn't what the source has" in lines[0]
    rewrite(encoded, DATA, with_values("key", lambda rows: rows[::-1]))
    assert any("its source '0-0'" in line for line in verify(encoded.storage.root, sample=3).problems)


def test_a_source_that_changed_or_is_gone_is_a_line(encoded, dataset):
    file = sorted(dataset.glob("*.parquet"))[0]
    data = file.read_bytes()
    file.write_bytes(data + b" ")
    lines = verify(encoded.storage.root, sample=3).problems
    assert lines and all("\n" not in line and file.name in line for line in lines), lines
    for path in dataset.glob("*.parquet"):
        path.unlink()
    (line,) = verify(encoded.storage.root, sample=3).problems
    assert "no row can be encoded again" in line and "\n" not in line


def test_other_weights_than_the_runs_are_a_line(encoded):
    path = root(encoded) / "job.json"
    manifest = json.loads(path.read_text())
    manifest["weights"]["sha256"] = "0" * 64
    path.write_text(json.dumps(manifest))
    (line,) = verify(encoded.storage.root, sample=1).problems
    assert "no row can be encoded again: weights: random:0 aren't what they were" in line


def test_a_run_of_less_precision_is_compared_and_not_held_to_the_limit(encoded, monkeypatch):
    monkeypatch.setattr(RunDir, "check_manifest", lambda run: None)  # the facts below are made up
    path = root(encoded) / "job.json"
    manifest = json.loads(path.read_text())
    manifest["facts"]["model"]["precision"] = "bfloat16"
    path.write_text(json.dumps(manifest))
    rewrite(encoded, DATA, with_values("codes", lambda rows: [rows[0], [[5] * len(book) for book in rows[1]]]))
    result = verify(encoded.storage.root, sample=3)
    assert result.sound and "differ from float64, which bfloat16 isn't held to" in result.verdict
