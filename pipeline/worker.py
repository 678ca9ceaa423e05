"""One shard, start to commit: rows in, codes to the writer. Knows no Ray and no run directory but its writer's part.

A row that can't become codes becomes a `FailedRow`; nothing else that a row does ends the shard.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from pipeline.audio import AudioStream, open_audio
from pipeline.engine import Cancelled, Clip, Encoded, Engine
from pipeline.errors import AudioError, MimiJobsError
from pipeline.records import FRAME_SAMPLES, SAMPLE_RATE, EncodedRow, FailedRow, Row, Shard, ShardResult
from pipeline.spec import AudioPolicy

MAX_BYTES_IN_FLIGHT = 256 << 20  # of undecoded audio, beyond the first row
STOP_GRACE_S = 3.0  # how long clips in flight may take to finish once the shard is asked to stop


class Stopped(Exception):
    """The shard was asked to stop; what was finished is in its parts."""


class Reader(Protocol):
    def rows(self, shard: Shard, start: int = 0) -> Iterator[Row | FailedRow]: ...


class Writer(Protocol):
    done: set[int]

    def add(self, rows: list[EncodedRow]) -> None: ...
    def fail(self, row: FailedRow) -> None: ...
    def tick(self) -> None: ...
    def checkpoint(self) -> None: ...
    def finish(self, rows_read: int) -> ShardResult: ...


@dataclass(slots=True)
class Progress:
    """What an attempt at a shard has done so far, for the progress bar."""

    shard: int
    rows_read: int = 0
    encoded: int = 0
    skipped: int = 0
    audio_seconds: float = 0.0  # of rows in flight too, as far as they are encoded
    rows_in_flight: int = 0
    failures: dict[str, int] = field(default_factory=dict)  # kind -> rows; replaced, never changed: threads read it

    @property
    def failed(self) -> int:
        return sum(self.failures.values())


@dataclass(slots=True)
class Care:
    """How to treat a shard whose earlier attempts killed their process.

    Rows before `alone_until` are encoded one at a time, each announced through `note` before it is touched, so that
    a further death names its row. Rows in `crashed` are not touched again.
    """

    alone_until: int = 0
    crashed: dict[int, FailedRow] = field(default_factory=dict)
    note: Callable[[Row | None], None] = lambda row: None


class FilteredOut(Exception):
    """The recording is outside `min_seconds` and `max_seconds`."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


class _Measured:
    """A stream that ends with `FilteredOut` as soon as it is known to be too long, or too short at its end."""

    def __init__(self, stream: AudioStream, policy: AudioPolicy):
        self._stream, self._policy = stream, policy
        self.sample_rate, self.num_channels = stream.sample_rate, stream.num_channels

    @property
    def samples(self) -> int:
        return self._stream.samples

    def close(self) -> None:
        self._stream.close()

    def __iter__(self) -> Iterator:
        shortest, longest = self._policy.min_seconds, self._policy.max_seconds
        for block in self._stream:
            if longest is not None and self.samples > longest * self.sample_rate:
                raise FilteredOut("too_long", f"longer than audio.max_seconds ({longest:g} s)")
            yield block
        seconds = self.samples / self.sample_rate
        if shortest is not None and seconds < shortest:
            raise FilteredOut("too_short", f"{seconds:.3f} s is shorter than audio.min_seconds ({shortest:g} s)")


class _RowInFlight:
    """A row whose clips (one, or one a channel) are in the engine."""

    def __init__(self, row: Row):
        self.row = row
        self.num_bytes = len(row.audio.data) if row.audio is not None and row.audio.data is not None else 0
        self.clips: list[Clip] = []
        self.encoded: list[Encoded] = []


class ShardRun:
    """Drives one shard through the engine. All writing happens on the thread that calls `run`."""

    def __init__(
        self,
        shard: Shard,
        *,
        reader: Reader,
        engine: Engine,
        writer: Writer,
        policy: AudioPolicy,
        care: Care | None = None,
        stop: threading.Event | None = None,
    ):
        self._progress = Progress(shard.index)
        self._shard, self._reader, self._engine, self._writer = shard, reader, engine, writer
        self._policy, self._care = policy, care or Care()
        self._stop = stop or threading.Event()
        self._window = 2 * engine.slots + 2  # rows in flight: the slots full, and as many decoded ahead
        self._finished: queue.SimpleQueue[tuple[_RowInFlight, Clip]] = queue.SimpleQueue()
        self._in_flight: dict[int, _RowInFlight] = {}

    def run(self) -> ShardResult:
        """Encode every row that the writer doesn't hold yet. Raises `Stopped` with the finished rows checkpointed."""
        try:
            for item in self._reader.rows(self._shard):
                if self._stop.is_set():
                    self._wind_up()
                self._progress.rows_read += 1
                if item.row not in self._writer.done:
                    self._take(item)
            while self._in_flight:
                self._file_one()
        except BaseException:
            self._cancel_all()
            raise
        return self._writer.finish(self._progress.rows_read)

    def progress(self) -> Progress:
        """How far it is now; may be asked from any thread."""
        flights = list(self._in_flight.values())
        encoded_s = sum(f.clips[0].frames_done for f in flights if f.clips) * FRAME_SAMPLES / SAMPLE_RATE
        seconds = self._progress.audio_seconds + encoded_s
        return replace(self._progress, audio_seconds=seconds, rows_in_flight=len(flights))

    def row_of(self, clip: Clip) -> Row | None:
        return next((f.row for f in list(self._in_flight.values()) if clip in f.clips), None)

    # ------------------------------------------------------------ rows in

    def _take(self, item: Row | FailedRow) -> None:
        if isinstance(item, FailedRow):
            self._fail(item)
            return
        if item.row in self._care.crashed:
            self._fail(self._care.crashed[item.row])
            return
        if item.audio is None:
            self._fail(self._failure(item, "decode", "unreadable", "the audio is null"))
            return
        alone = item.row < self._care.alone_until
        self._make_room(_RowInFlight(item).num_bytes, 1 if alone else self._window)
        if alone:
            self._care.note(item)
        self._submit(item)
        if alone:
            self._make_room(0, 1)
            self._writer.checkpoint()
            self._care.note(None)

    def _make_room(self, num_bytes: int, window: int) -> None:
        """File finished rows; wait while the window, in rows or bytes, is full."""
        while self._in_flight:
            held = sum(f.num_bytes for f in self._in_flight.values())
            full = len(self._in_flight) >= window or held + num_bytes > MAX_BYTES_IN_FLIGHT
            if not full and self._finished.empty():
                return
            self._file_one()

    def _submit(self, row: Row) -> None:
        flight = _RowInFlight(row)
        self._in_flight[row.row] = flight
        self._submit_channel(flight, "mix" if self._policy.channels == "mix" else 0)

    def _submit_channel(self, flight: _RowInFlight, channel: int | Literal["mix"]) -> None:
        audio = flight.row.audio
        assert audio is not None

        def open_stream() -> _Measured:
            stream = open_audio(audio, channel=channel, allow_truncated=self._policy.allow_truncated)
            return _Measured(stream, self._policy)

        clip = self._engine.submit(open_stream)
        flight.clips.append(clip)
        clip.future.add_done_callback(lambda _: self._finished.put((flight, clip)))

    # ------------------------------------------------------------ codes out

    def _file_one(self) -> None:
        """Wait for the next clip to finish, and file its row if that was its last."""
        while True:
            try:
                flight, clip = self._finished.get(timeout=1.0)
                break
            except queue.Empty:
                if self._stop.is_set():
                    self._wind_up()
                self._writer.tick()  # a long clip must not keep finished rows out of the parts
        error = clip.future.exception()
        if error is not None:
            self._drop(flight, error)
            return
        flight.encoded.append(clip.future.result())
        each = self._policy.channels == "each"
        if each and len(flight.encoded) < flight.encoded[0].num_channels:
            if self._stop.is_set():
                del self._in_flight[flight.row.row]
            else:
                self._submit_channel(flight, len(flight.encoded))
            return
        del self._in_flight[flight.row.row]
        rows = [
            EncodedRow(
                flight.row, number if each else None, done.codes, done.duration, done.sample_rate, done.num_channels
            )
            for number, done in enumerate(flight.encoded)
        ]
        self._writer.add(rows)
        self._progress.encoded += 1
        self._progress.audio_seconds += flight.encoded[0].duration

    def _drop(self, flight: _RowInFlight, error: BaseException) -> None:
        """A clip of the row didn't become codes: the row fails, unless the fault isn't the row's."""
        row = flight.row
        self._in_flight.pop(row.row, None)
        if isinstance(error, FilteredOut):
            self._fail(self._failure(row, "filter", error.kind, str(error)))
        elif isinstance(error, AudioError):
            self._fail(self._failure(row, error.stage, error.kind, str(error)))
        elif flight.clips[-1].error is error and not isinstance(error, MimiJobsError | MemoryError | Cancelled):
            # a fault of ours that this recording showed: the row is told, and the others go on
            self._fail(self._failure(row, "decode", "unreadable", f"internal error: {type(error).__name__}: {error}"))
        else:
            raise error

    def _failure(self, row: Row, stage: str, kind: str, message: str) -> FailedRow:
        return FailedRow(row.shard, row.row, row.key, stage, kind, message)

    def _fail(self, failed: FailedRow) -> None:
        self._writer.fail(failed)
        if failed.stage == "filter":
            self._progress.skipped += 1
        else:
            failures = self._progress.failures
            self._progress.failures = failures | {failed.kind: failures.get(failed.kind, 0) + 1}

    # ------------------------------------------------------------ stopping

    def _wind_up(self) -> None:
        """Give the clips in flight a moment, save what is finished, and raise `Stopped`."""
        timer = threading.Timer(STOP_GRACE_S, self._cancel_all)
        timer.start()
        try:
            while self._in_flight:
                flight, clip = self._finished.get(timeout=STOP_GRACE_S + 10)
                error = clip.future.exception()
                if error is None or not isinstance(error, Cancelled):
                    self._finished.put((flight, clip))
                    self._file_one()
                else:
                    self._in_flight.pop(flight.row.row, None)
        finally:
            timer.cancel()
        self._writer.checkpoint()
        raise Stopped

    def _cancel_all(self) -> None:
        for flight in list(self._in_flight.values()):
            for clip in flight.clips:
                self._engine.cancel(clip)
