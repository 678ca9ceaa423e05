"""How a run stands, read from its files while nothing, a driver here, or a driver elsewhere is at work."""

import json
import time
from dataclasses import replace

import pytest

from jobs.status import status
from pipeline.errors import RunDirError
from pipeline.lock import FIRST, Holder
from pipeline.records import FailedRow
from tests.jobs.making import make_run, publish, random_codes


def test_a_run_that_was_only_made_is_stopped(job_file):
    run = make_run(job_file)
    result = status(run.storage.root)
    assert (result.state, result.shards, result.shards_done, result.rows) == ("stopped", 2, 0, 0)
    assert (result.weights, result.random_weights) == ("random:0", True)


def test_a_finished_run_adds_its_shards_up(job_file):
    run = make_run(job_file)
    for shard in run.shards():
        failed = [
            FailedRow(shard.index, 1, "x", "decode", "unreadable", "no sound"),
            FailedRow(shard.index, 2, "y", "filter", "too_long", "70 s"),
        ]
        publish(run, shard, [random_codes(25)], failed)
    result = status(run.storage.root)
    assert (result.state, result.shards_done, result.shards_with_failures) == ("finished", 2, 2)
    assert (result.rows, result.encoded, result.failed, result.skipped, result.frames) == (6, 2, 2, 2, 50)
    assert result.hours == pytest.approx(4 / 3600)
    assert result.failures["unreadable"] == 2


def test_a_shard_whose_file_is_gone_is_not_done(job_file, tmp_path):
    run = make_run(job_file)
    for shard in run.shards():
        publish(run, shard, [random_codes(25)])
    (tmp_path / "out" / "data" / "train-00000-of-00002.parquet").unlink()
    result = status(run.storage.root)
    assert (result.state, result.shards_done, result.rows) == ("stopped", 1, 1)
    (line,) = result.redo
    assert "data/train-00000-of-00002.parquet is missing" in line


def test_the_slowest_shards_come_first(job_file):
    run = make_run(job_file)
    for shard in run.shards():
        publish(run, shard, [random_codes(25)])
    slowest = status(run.storage.root).slowest
    assert {each.shard for each in slowest} == {0, 1} and all(each.rows == 1 for each in slowest)
    assert slowest[0].seconds >= slowest[1].seconds


PROGRESS = {
    "rows": 7, "failed": 2, "skipped": 1, "audio_seconds": 7200.0, "times_real_time": 12.5, "seconds_left": 60.0,
    "actors": 2, "running": [{"shard": 1, "rows_read": 5, "audio_seconds": 3.5}],
}  # fmt: skip


def test_a_driver_at_work_here_says_how_far_it_is(job_file):
    run = make_run(job_file)
    publish(run, next(iter(run.shards())), [random_codes(25)])
    with run.locked() as lock:
        run.write_progress({**PROGRESS, "updated": time.time()})
        result = status(run.storage.root)
    assert (result.state, result.rows, result.failed, result.hours) == ("running", 7, 2, 2.0)
    assert (result.times_real_time, result.seconds_left, result.actors) == (12.5, 60.0, 2)
    assert [(each.shard, each.rows_read) for each in result.running] == [(1, 5)]
    assert result.holder == lock.holder.words()
    assert status(run.storage.root).state == "stopped"


def test_a_note_of_an_earlier_driver_is_not_taken_for_this_ones(job_file):
    run = make_run(job_file)
    run.write_progress({**PROGRESS, "updated": time.time() - 1000})
    with run.locked():
        result = status(run.storage.root)
    assert (result.state, result.rows, result.times_real_time) == ("running", 0, None)


@pytest.mark.parametrize(("age_s", "state"), [(10, "running"), (1000, "stopped")])
def test_a_driver_on_another_machine_runs_while_its_heartbeat_is_fresh(job_file, age_s, state):
    run = make_run(job_file)
    then = time.time() - age_s
    elsewhere = replace(Holder.here(then), host="elsewhere", machine="another")
    fields = {name: getattr(elsewhere, name) for name in Holder.__slots__}
    run.storage.write_bytes_atomic(FIRST, json.dumps(fields).encode())
    assert status(run.storage.root).state == state


def test_where_no_run_is_the_error_names_the_path(tmp_path):
    with pytest.raises(RunDirError, match=f"{tmp_path}: is not a run"):
        status(str(tmp_path))


def test_the_json_has_the_documented_names(job_file):
    facts = json.loads(status(make_run(job_file).storage.root).to_json())
    assert set(facts) == {
        "version", "path", "state", "shards", "shards_done", "shards_with_failures", "rows", "encoded", "failed",
        "skipped", "frames", "hours", "weights", "random_weights", "failures", "running", "times_real_time",
        "seconds_left", "actors", "holder", "slowest", "redo",
    }  # fmt: skip
