"""The run directory: what is refused, what is done again, and that no moment of death loses or doubles a row."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import load_dataset

from pipeline.errors import RunDirError
from pipeline.lock import FIRST, Lock
from pipeline.marker import Marker, PublishedFile, marker_name
from pipeline.marker_index import INDEX
from pipeline.parts import list_parts
from pipeline.plan import Plan
from pipeline.records import Shard, SourceFile
from pipeline.run_dir import RunDir, difference, fingerprint, is_run
from pipeline.storage import Storage
from tests.pipeline.run_helpers import (
    MANIFEST,
    check_shard,
    do_shard,
    encoded,
    finish_run,
    make_run,
    write_rows,
    writer_of,
)

ROWS = "eefsee"
DATA = "data/train-00000-of-00002.parquet"


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """A dead process loses nothing that it wrote, synced or not; only a dead machine does."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class Killed(BaseException):
    """What no `except Exception` catches, as a SIGKILL."""


class Reaper:
    """Kills at the n-th call that changes the disk; the dead change nothing afterwards, not even in a `finally`."""

    CALLS = ("write", "fsync", "replace", "unlink", "mkdir", "rmdir", "link")

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int):
        self.left = at
        for name in self.CALLS:
            monkeypatch.setattr(os, name, self._wrap(getattr(os, name)))

    def _wrap(self, call):
        def wrapped(*args, **kwargs):
            self.left -= 1
            if self.left < 0:
                raise Killed
            return call(*args, **kwargs)

        return wrapped


def kill_at(step: int, function) -> bool:
    """Whether the function was killed before it ended."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        reaper = Reaper(monkeypatch, step)
        try:
            function()
        except (Killed, RunDirError):
            assert reaper.left < 0
            return True
    return False


def steps_until_done(one) -> int:
    """Kill at every step in turn until one run gets through."""
    step = 0
    while one(step):
        step += 1
        assert step < 500
    return step


def test_killed_at_any_step_of_a_first_publication_a_resume_gives_the_same_rows(tmp_path):
    def one(step: int) -> bool:
        out = tmp_path / f"{step} ünder way"
        run = make_run(out, 1)
        lock = Lock.acquire(run.storage)
        killed = kill_at(step, lambda: do_shard(run, lock, 0, ROWS))
        lock.release()
        again = RunDir.open(str(out))
        if 0 in again.markers():
            check_shard(again, 0, ROWS, tmp_path)
        finish_run(again, ROWS)
        check_shard(again, 0, ROWS, tmp_path)
        left = {entry.name for entry in again.storage.list("_state")}
        assert "00000" not in left and not again.storage.list("_state/tmp")
        return killed

    assert steps_until_done(one) > 15


def test_killed_at_any_step_of_a_rewrite_the_shard_is_the_old_the_new_or_not_done(tmp_path):
    def one(step: int) -> bool:
        out = tmp_path / str(step)
        run = make_run(out, 1)
        finish_run(run, ROWS)
        lock = Lock.acquire(run.storage)
        killed = kill_at(step, lambda: do_shard(run, lock, 0, "eeesee", 2, retry_failed=True))
        lock.release()
        again = RunDir.open(str(out))
        if not again.pending()[0]:
            check_shard(again, 0, "eeesee" if not again.markers()[0].failed else ROWS, tmp_path)
        finish_run(again, "eeesee")
        check_shard(again, 0, "eeesee" if not again.markers()[0].failed else ROWS, tmp_path)
        return killed

    assert steps_until_done(one) > 15


def test_killed_at_any_step_of_creation_the_run_is_made_again(tmp_path):
    def one(step: int) -> bool:
        killed = kill_at(step, lambda: make_run(tmp_path / str(step), 1))
        finish_run(make_run(tmp_path / str(step), 1), ROWS)
        check_shard(RunDir.open(str(tmp_path / str(step))), 0, ROWS, tmp_path)
        return killed

    assert steps_until_done(one) > 10


def test_a_folder_that_holds_something_else_is_refused(tmp_path):
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(RunDirError, match=r"holds something else \(holiday.jpg\)"):
        make_run(tmp_path)
    assert not is_run(str(tmp_path))


def test_another_jobs_run_is_refused_with_the_names_of_what_differs(tmp_path):
    make_run(tmp_path / "out")
    other = {**MANIFEST, "fingerprint": "g", "facts": {"model": {"num_codebooks": 8}}}
    with pytest.raises(RunDirError, match=r"model\.num_codebooks: was 2, is now 8"):
        make_run(tmp_path / "out", manifest=other)


def test_a_file_where_the_folder_should_be_is_refused_in_one_line(tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(RunDirError, match="is a file, not a folder") as caught:
        make_run(tmp_path / "out")
    assert "\n" not in str(caught.value)


def test_what_is_not_a_run_cannot_be_opened(tmp_path):
    with pytest.raises(RunDirError, match="is not a run"):
        RunDir.open(str(tmp_path))


def test_resume_redoes_a_shard_whose_file_is_missing_or_of_another_size_or_whose_marker_is_damaged(tmp_path):
    run = make_run(tmp_path / "out", 4)
    finish_run(run, ROWS)
    root = Path(run.storage.root)
    (root / "data/train-00000-of-00004.parquet").unlink()
    with (root / "errors/train-00001-of-00004.parquet").open("ab") as file:
        file.write(b"more")
    (root / marker_name(2)).write_text('{"shard": 2')
    shards, words = run.pending()
    assert [shard.index for shard in shards] == [0, 1, 2]
    assert "data/train-00000-of-00004.parquet is missing" in words[0]
    assert "errors/train-00001-of-00004.parquet has" in words[1]
    assert "marker is damaged" in words[2]
    finish_run(run, ROWS)
    for shard in range(4):
        check_shard(run, shard, ROWS, tmp_path)


def test_a_marker_that_names_files_outside_the_run_is_not_believed():
    marker = Marker(0, 1, 1, 1, 0, 0, 1, 1, 1.0, 1.0, 1.0, "", (PublishedFile("data/../../x.parquet", 1, "0"),), {})
    with pytest.raises(ValueError, match="not a marker"):
        Marker.from_json(marker.to_json())


def test_with_retry_failed_shards_with_failed_rows_wait_too(tmp_path):
    run = make_run(tmp_path / "out", 2)
    with run.locked() as lock:
        do_shard(run, lock, 0, "ee")
        do_shard(run, lock, 1, "ef")
    assert len(run.pending()[0]) == 0
    assert [shard.index for shard in run.pending(retry_failed=True)[0]] == [1]


def test_markers_through_the_index_are_those_in_the_files(tmp_path):
    run = make_run(tmp_path / "out", 3)
    finish_run(run, ROWS)
    through_index = run.markers()
    run.storage.remove(INDEX)
    assert run.markers() == through_index and len(through_index) == 3


def test_a_marker_rewritten_after_the_index_is_read_anew(tmp_path):
    run = make_run(tmp_path / "out", 1)
    finish_run(run, ROWS)
    with run.locked() as lock:
        do_shard(run, lock, 0, "eeeeee", attempt=2)
    assert run.markers()[0].encoded == 6


def test_an_index_brought_up_to_date_is_what_the_markers_say(tmp_path):
    run = make_run(tmp_path / "out", 4)
    finish_run(run, ROWS)
    with run.locked() as lock:
        do_shard(run, lock, 2, "eeffss", attempt=2)
        run.storage.remove(marker_name(1))
        (tmp_path / "out" / marker_name(3)).write_bytes(b"{")
        run.finish()
    through_index = run.markers()
    indexed = pq.read_table(tmp_path / "out" / INDEX).column("shard").to_pylist()
    run.storage.remove(INDEX)
    assert run.markers() == through_index and list(through_index) == indexed == [0, 2]
    assert through_index[2].failures == {"unreadable": 2}


def test_a_damaged_index_does_no_harm(tmp_path):
    run = make_run(tmp_path / "out", 1)
    finish_run(run, ROWS)
    (tmp_path / "out" / INDEX).write_bytes(b"PAR1")
    assert run.markers()[0].encoded == 4


def test_a_driver_that_lost_the_lock_publishes_nothing(tmp_path):
    run = make_run(tmp_path / "out", 1)
    lock = Lock.acquire(run.storage)
    writer = writer_of(run, 0)
    write_rows(writer, 0, ROWS)
    result = writer.finish(6)
    run.storage.remove(FIRST)
    Lock.acquire(run.storage)
    with pytest.raises(RunDirError, match="taken over"):
        run.publish(result, run.shards()[0], lock)
    assert run.markers() == {} and not (tmp_path / "out/data").exists()


def test_a_staged_file_that_is_gone_is_not_published(tmp_path):
    run = make_run(tmp_path / "out", 1)
    with run.locked() as lock:
        writer = writer_of(run, 0)
        write_rows(writer, 0, ROWS)
        result = writer.finish(6)
        run.storage.remove(result.files[0].staged)
        with pytest.raises(RunDirError, match="damaged or taken away"):
            run.publish(result, run.shards()[0], lock)
    assert run.markers() == {}


def test_what_a_dead_driver_left_is_swept_but_not_the_parts_of_a_shard_to_do(tmp_path):
    run = make_run(tmp_path / "out", 2)
    with run.locked() as lock:
        do_shard(run, lock, 0, ROWS)
    for shard in (0, 1):
        writer = writer_of(run, shard, attempt=4)
        writer.add([encoded(shard, 0)])
        writer.checkpoint()
    run.storage.write_bytes_atomic("_state/tmp/left", b"over")
    assert run.next_attempt() == 5
    with run.locked():
        assert not run.storage.list("_state/tmp") and not run.storage.list("_state/00000")
        assert len(list_parts(run.storage, 1)) == 1


def test_the_plan_comes_back_as_it_was(tmp_path):
    files = (SourceFile("s3://b/å", None, None), SourceFile("/x y", 3, "etag"))
    shards = [
        Shard(0, "train", files),
        Shard(1, "test", (files[0],), row_groups=(2, 5)),
        Shard(2, "test", (), rows=(7, None), num_rows=4, num_bytes=9),
    ]
    RunDir.create(str(tmp_path / "out"), manifest=MANIFEST, shards=iter(shards), schema=pa.schema([]))
    plan = RunDir.open(str(tmp_path / "out")).shards()
    assert list(plan) == shards and [plan[i] for i in range(-3, 3)] == shards * 2 and list(plan[1:]) == shards[1:]
    with pytest.raises(AssertionError, match="planned at place"):
        Plan.of(reversed(shards))


def test_a_run_loads_with_datasets_and_the_cards_words_change_with_its_contents(tmp_path):
    run = make_run(tmp_path / "out", 2)
    with run.locked() as lock:
        do_shard(run, lock, 0, "fff")
        run.finish()
        before = (tmp_path / "out/README.md").read_text()
        do_shard(run, lock, 1, "eefs")
        run.finish()
    after = (tmp_path / "out/README.md").read_text()
    assert before.split("description: ")[1][:60] != after.split("description: ")[1][:60]
    assert "mean nothing" in after and "**Not finished**" in before and "**Not finished**" not in after
    cache = str(tmp_path / "cache")
    data = load_dataset(run.storage.root, split="train", cache_dir=cache)
    assert data.num_rows == 2 and "List(List(Value('uint16'" in str(data.features["codes"])
    assert list(data.with_format("torch")[1]["codes"].shape) == [2, 2]
    assert load_dataset(run.storage.root, "errors", split="train", cache_dir=cache).num_rows == 4
    assert load_dataset(run.storage.root, "skipped", split="train", cache_dir=cache).num_rows == 1


def test_a_run_of_no_shards_has_a_file_with_the_schema(tmp_path):
    run = make_run(tmp_path / "out", 0)
    finish_run(run, "")
    assert list(load_dataset(run.storage.root, split="train", streaming=True)) == []


def test_progress_is_read_back_and_nothing_where_there_is_none(tmp_path):
    run = make_run(tmp_path / "out")
    assert run.read_progress() is None
    run.write_progress({"rows": 3})
    assert run.read_progress() == {"rows": 3}


def test_fingerprints_go_by_content_and_differences_name_the_leaves():
    assert fingerprint({"a": 1, "b": (2,)}) == fingerprint({"b": [2], "a": 1}) != fingerprint({"a": 1})
    assert difference({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}, "d": "x"}) == [
        "a.c: was 2, is now 3",
        'd: was null, is now "x"',
    ]


@pytest.mark.parametrize("url", ["memory://x", "hf://datasets/a/b", "ftp://host/x", "s3://", "s3://me:secret@bucket/x"])
def test_urls_that_cannot_hold_a_run_are_refused_without_a_secret(url):
    with pytest.raises(RunDirError) as caught:
        Storage.at(url)
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)
