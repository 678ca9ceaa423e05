"""Parts and their merge: source order, no losses, no doubles, whatever order rows finish in."""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import writer as writer_module
from pipeline.marker import Marker
from pipeline.merge import Order
from pipeline.parts import list_parts, open_part
from pipeline.run_dir import RunDir
from pipeline.writer import ShardWriter
from tests.pipeline.run_helpers import (
    KEPT,
    check_shard,
    codes_of,
    do_shard,
    encoded,
    failed,
    make_run,
    skipped,
    write_rows,
    writer_of,
)


def read(run: RunDir, result, kind: str) -> list[dict]:
    staged = [file.staged for file in result.files if file.final.startswith(kind)]
    return pq.read_table(Path(run.storage.root) / staged[0]).to_pylist() if staged else []


def save_in_parts(writer: ShardWriter, rows: list[tuple[int, str]]) -> None:
    for row, what in rows:
        if what == "checkpoint":
            writer.checkpoint()
        elif what == "e":
            writer.add([encoded(0, row)])
        else:
            writer.fail(failed(0, row) if what == "f" else skipped(0, row))


EVENTS = st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["e", "f", "s", "checkpoint"])), max_size=25)


@settings(max_examples=25, deadline=None)
@given(zombie=EVENTS, mine=EVENTS)
def test_any_order_and_any_duplicates_give_each_row_once_in_source_order(zombie, mine):
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder) / "out")
        first = writer_of(run, 0, attempt=1)
        save_in_parts(first, zombie)
        first.checkpoint()
        second = writer_of(run, 0, attempt=2)
        save_in_parts(second, mine)
        kinds = {row: set() for row, what in zombie + mine if what != "checkpoint"}
        for row, what in zombie + mine:
            if what != "checkpoint":
                kinds[row].add(what)
        result = second.finish(len(kinds))
        data = read(run, result, "data")
        assert [row["row"] for row in data] == sorted(row for row, what in kinds.items() if "e" in what)
        assert all(row["codes"] == codes_of(0, row["row"]).tolist() for row in data)
        others = [row["row"] for kind in ("errors", "skipped") for row in read(run, result, kind)]
        assert sorted(others) == sorted(row for row, what in kinds.items() if "e" not in what)


def test_codes_come_back_as_codebooks_times_frames_uint16(tmp_path):
    run = make_run(tmp_path / "out")
    writer = writer_of(run, 0)
    writer.add([encoded(0, 4)])
    result = writer.finish(1)
    file = pq.ParquetFile(Path(run.storage.root) / result.files[0].staged)
    assert str(file.schema_arrow.field("codes").type.value_type.value_type) == "uint16"
    row = file.read().to_pylist()[0]
    assert np.array_equal(row["codes"], codes_of(0, 4))
    assert (row["num_frames"], row["num_channels"], row["channel"], row["text"]) == (5, 2, None, "text 4")
    assert b"huggingface" in file.schema_arrow.metadata and b"mimi_jobs" in file.schema_arrow.metadata


def test_each_channel_is_a_row_and_a_recording_counts_once(tmp_path):
    run = make_run(tmp_path / "out")
    writer = writer_of(run, 0)
    for row in (1, 0):
        writer.add([encoded(0, row, 0), encoded(0, row, 1)])
    result = writer.finish(2)
    assert [(row["row"], row["channel"]) for row in read(run, result, "data")] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert (result.encoded, result.clips, result.frames) == (2, 4, 6)
    assert result.audio_seconds == pytest.approx(0.08 + 0.16)


def test_rows_in_parts_are_done_for_the_next_attempt(tmp_path):
    run = make_run(tmp_path / "out")
    first = writer_of(run, 0)
    first.add([encoded(0, 3)])
    first.fail(failed(0, 1))
    first.checkpoint()
    first.add([encoded(0, 2)])  # never saved
    assert writer_of(run, 0, attempt=2).done == {1, 3}


def test_a_damaged_part_is_done_again(tmp_path):
    run = make_run(tmp_path / "out")
    first = writer_of(run, 0)
    first.add([encoded(0, 0)])
    first.checkpoint()
    name = list_parts(run.storage, 0)[0]
    path = Path(run.storage.root) / name
    path.write_bytes(path.read_bytes()[:-20])
    second = writer_of(run, 0, attempt=2)
    assert second.done == set()
    write_rows(second, 0, "ee")
    assert second.finish(2).encoded == 2


def test_two_writers_of_the_same_attempt_do_not_write_over_each_other(tmp_path):
    run = make_run(tmp_path / "out")
    one, two = writer_of(run, 0), writer_of(run, 0)
    one.add([encoded(0, 0)])
    two.add([encoded(0, 1)])
    one.checkpoint()
    two.checkpoint()
    assert writer_of(run, 0, attempt=2).done == {0, 1}


def test_a_part_is_saved_when_its_time_has_come_or_its_buffer_is_full(tmp_path, monkeypatch):
    run = make_run(tmp_path / "out")
    now = [0.0]
    writer = writer_of(run, 0, checkpoint_seconds=60, clock=lambda: now[0])
    writer.add([encoded(0, 0)])
    assert list_parts(run.storage, 0) == []
    now[0] = 61.0
    writer.tick()
    assert len(list_parts(run.storage, 0)) == 1
    monkeypatch.setattr(writer_module, "MAX_BUFFERED_BYTES", 1)
    writer.add([encoded(0, 1)])
    assert len(list_parts(run.storage, 0)) == 2


def test_rows_that_do_not_add_up_are_refused(tmp_path):
    run = make_run(tmp_path / "out")
    writer = writer_of(run, 0)
    write_rows(writer, 0, "ef")
    with pytest.raises(AssertionError, match="add up"):
        writer.finish(3)


def test_empty_codes_are_never_written(tmp_path):
    writer = writer_of(make_run(tmp_path / "out"), 0)
    row = encoded(0, 0)
    object.__setattr__(row, "codes", np.empty((2, 0), np.uint16))
    writer.add([row])
    with pytest.raises(AssertionError, match="codes"):
        writer.checkpoint()


def test_row_groups_are_bounded_in_bytes(tmp_path):
    run = make_run(tmp_path / "out")
    writer = writer_of(run, 0)
    for row in range(200):
        writer.add([encoded(0, 199 - row)])
    writer.checkpoint()
    part = open_part(run.storage, list_parts(run.storage, 0)[0], run.schema(), tmp_path)
    assert part is not None
    tables = list(Order([part]).tables(max_bytes=2000))
    assert sum(table.num_rows for table in tables) == 200 and len(tables) > 5
    assert [row for table in tables for row in table.column("row").to_pylist()] == list(range(200))


def test_retry_failed_keeps_what_was_encoded_and_skipped_and_tries_the_rest(tmp_path):
    run = make_run(tmp_path / "out")
    with run.locked() as lock:
        do_shard(run, lock, 0, "efse")
        writer = writer_of(run, 0, attempt=2, retry_failed=True)
        assert writer.done == {0, 2, 3}
        write_rows(writer, 0, "eese")
        run.publish(writer.finish(4), run.shards()[0], lock)
    check_shard(run, 0, "eese", tmp_path)
    assert not (tmp_path / "out/errors/train-00000-of-00002.parquet").exists()


def test_retry_failed_of_a_shard_whose_file_is_gone_does_every_row(tmp_path):
    run = make_run(tmp_path / "out")
    with run.locked() as lock:
        do_shard(run, lock, 0, "ef")
    (tmp_path / "out/data/train-00000-of-00002.parquet").unlink()
    assert writer_of(run, 0, attempt=2, retry_failed=True).done == set()


def test_a_shard_without_rows_still_has_a_file(tmp_path):
    run = make_run(tmp_path / "out")
    with run.locked() as lock:
        do_shard(run, lock, 0, "")
    marker = run.markers()[0]
    assert isinstance(marker, Marker) and marker.rows_read == 0
    assert pq.read_table(tmp_path / "out" / marker.files[0].path).schema.field("text").type == KEPT.field("text").type
