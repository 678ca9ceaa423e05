"""The worker: every row of a shard is accounted for, once, whatever it holds."""

import io
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest
import soundfile

from pipeline.engine import Engine
from pipeline.errors import SourceError
from pipeline.records import Audio, FailedRow, Row, Shard, ShardResult, SourceFile
from pipeline.spec import AudioPolicy
from pipeline.tally import Tally
from pipeline.worker import Care, ShardRun, Stopped
from tests.pipeline.fakes import FakeEncoder, MemoryWriter, codes_of, whole_numbers

SHARD = Shard(3, "train", (SourceFile("x"),))
KEPT = pa.record_batch({"text": pa.array(["t"])})


def wav(samples: np.ndarray, rate: int = 24000) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples.astype(np.int16), rate, format="WAV", subtype="PCM_16")
    return buffer.getvalue()


def row(number: int, data: bytes | None) -> Row:
    return Row(SHARD.index, number, f"key {number}", Audio(data, None) if data is not None else None, KEPT)


@dataclass
class ListReader:
    items: Sequence[Row | FailedRow]
    error: Exception | None = None
    before_each: Callable[[int], None] = field(default=lambda i: None)

    def rows(self, shard: Shard, start: int = 0) -> Iterator[Row | FailedRow]:
        for i, item in enumerate(self.items):
            self.before_each(i)
            yield item
        if self.error is not None:
            raise self.error


def encode(reader: ListReader, *, slots: int = 2, writer: MemoryWriter | None = None, **more):
    writer = writer or MemoryWriter(SHARD)
    policy = more.pop("policy", AudioPolicy())
    with Engine(FakeEncoder(32768.0), slots=slots, chunk_frames=1, decode_threads=2) as engine:
        run = ShardRun(SHARD, reader=reader, engine=engine, writer=writer, policy=policy, **more)
        return run.run(), writer


def counts(result: ShardResult) -> tuple[int, int, int, int]:
    return result.rows_read, result.encoded, result.failed, result.skipped


def test_good_bad_null_and_unreadable_rows_are_all_accounted_for():
    clips = [whole_numbers(n, n) for n in (5000, 1, 24001)]
    from_source = FailedRow(SHARD.index, 4, "key 4", "source", "unreadable", "the tar ends early")
    items = [row(0, wav(clips[0])), row(1, b"<html>"), row(2, wav(clips[1])), row(3, None), from_source]
    items.append(row(5, wav(clips[2])))
    result, writer = encode(ListReader(items))
    assert counts(result) == (6, 3, 3, 0)
    by_row = {rows[0].row.row: rows[0] for rows in writer.encoded}
    for number, samples in zip((0, 2, 5), clips, strict=True):
        assert np.array_equal(by_row[number].codes, codes_of(samples))
        assert by_row[number].channel is None
    assert {f.row: f.kind for f in writer.failed} == {1: "unreadable", 3: "unreadable", 4: "unreadable"}


def test_failures_in_flight_are_told_by_kind_beside_those_of_shards_done():
    items = [row(0, b"<html>"), row(1, wav(whole_numbers(50))), row(2, None)]
    with Engine(FakeEncoder(32768.0), slots=1, chunk_frames=1) as engine:
        reader, writer = ListReader(items), MemoryWriter(SHARD)
        run = ShardRun(SHARD, reader=reader, engine=engine, writer=writer, policy=AudioPolicy())
        run.run()
    assert run.progress().failures == {"unreadable": 2}
    tally = Tally([SHARD], {})
    tally.failures.update({"unreadable": 1, "too_long": 4})
    assert tally.commonest_failures([run.progress()]) == [("too_long", 4), ("unreadable", 3)]


def test_rows_that_the_writer_holds_already_are_not_encoded_again():
    items = [row(i, wav(whole_numbers(3000, i))) for i in range(4)]
    result, writer = encode(ListReader(items), writer=MemoryWriter(SHARD, done={0, 2}))
    assert sorted(rows[0].row.row for rows in writer.encoded) == [1, 3]
    assert counts(result) == (4, 4, 0, 0)


def test_each_channel_becomes_a_clip_of_its_row():
    left, right = whole_numbers(5000, 1), whole_numbers(5000, 2)
    items = [row(0, wav(np.stack([left, right], 1))), row(1, wav(left))]
    result, writer = encode(ListReader(items), policy=AudioPolicy(channels="each"))
    by_row = {rows[0].row.row: rows for rows in writer.encoded}
    assert [clip.channel for clip in by_row[0]] == [0, 1]
    assert np.array_equal(by_row[0][1].codes, codes_of(right))
    assert [clip.channel for clip in by_row[1]] == [0]
    assert (result.encoded, result.clips) == (2, 3)


def test_recordings_outside_the_bounds_are_skipped_not_failed():
    items = [row(i, wav(whole_numbers(n))) for i, n in enumerate((2399, 2400, 24000, 24001))]
    result, writer = encode(ListReader(items), policy=AudioPolicy(min_seconds=0.1, max_seconds=1.0))
    assert counts(result) == (4, 2, 0, 2)
    assert {f.row: f.kind for f in writer.failed} == {0: "too_short", 3: "too_long"}


def test_a_source_that_breaks_ends_the_shard_with_its_error():
    reader = ListReader([row(0, wav(whole_numbers(5000)))], SourceError("connection lost"))
    with pytest.raises(SourceError, match="connection lost"):
        encode(reader)


def test_a_stop_keeps_what_is_finished_and_checkpoints():
    stop = threading.Event()
    items = [row(i, wav(whole_numbers(4000, i))) for i in range(50)]
    writer = MemoryWriter(SHARD)
    reader = ListReader(items, before_each=lambda i: stop.set() if i == 20 else None)
    with pytest.raises(Stopped):
        encode(reader, writer=writer, stop=stop)
    assert 1 <= len(writer.encoded) <= 20
    assert writer.checkpoints == 1


def test_rows_with_care_are_announced_before_and_saved_after_each():
    announced: list[int | None] = []
    care = Care(alone_until=2, note=lambda r: announced.append(r.row if r else None))
    result, writer = encode(ListReader([row(i, wav(whole_numbers(4000, i))) for i in range(4)]), care=care)
    assert announced == [0, None, 1, None]
    assert writer.checkpoints == 2
    assert result.encoded == 4


def test_a_row_given_up_as_crashed_is_not_touched():
    crashed = FailedRow(SHARD.index, 1, "key 1", "worker", "crashed", "twice")
    items = [row(0, wav(whole_numbers(4000))), row(1, wav(whole_numbers(4000)))]
    result, writer = encode(ListReader(items), care=Care(crashed={1: crashed}))
    assert counts(result) == (2, 1, 1, 0)
    assert writer.failed == [crashed]


def test_a_long_recording_in_flight_counts_as_far_as_it_is_encoded():
    gate = threading.Event()
    seen = []

    class Held(FakeEncoder):
        def encode_step(self, chunk, state, active=None):
            if self.steps == 5:
                seen.append(run.progress())
                gate.set()
            return super().encode_step(chunk, state, active)

    writer = MemoryWriter(SHARD)
    with Engine(Held(32768.0), slots=1, chunk_frames=1) as engine:
        reader = ListReader([row(0, wav(whole_numbers(24000)))])
        run = ShardRun(SHARD, reader=reader, engine=engine, writer=writer, policy=AudioPolicy())
        run.run()
    assert gate.is_set()
    assert (seen[0].rows_in_flight, seen[0].encoded, seen[0].audio_seconds) == (1, 0, 5 * 0.08)
    assert (run.progress().rows_in_flight, run.progress().audio_seconds) == (0, 1.0)


def test_a_fault_of_ours_that_a_recording_shows_fails_its_row_alone(monkeypatch):
    import pipeline.worker

    before = pipeline.worker.open_audio

    def open_audio(audio, **more):
        if audio.data == b"odd":
            raise IndexError("list index out of range")
        return before(audio, **more)

    monkeypatch.setattr(pipeline.worker, "open_audio", open_audio)
    result, writer = encode(ListReader([row(0, b"odd"), row(1, wav(whole_numbers(4000)))]))
    assert counts(result) == (2, 1, 1, 0)
    assert (writer.failed[0].kind, "IndexError" in writer.failed[0].message) == ("unreadable", True)
