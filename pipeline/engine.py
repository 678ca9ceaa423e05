"""Many clips through one model, continuously batched: slots, chunks, one fixed-shape step at a time.

The engine knows no files and no datasets: it is given streams of samples and gives back codes. Decoding happens in
its pool of threads, a few chunks ahead of the model; how a stream decodes is the stream's own affair (`audio.py`).
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

import numpy as np
import torch

from mimi.graph import Pending, Runner, StepEncoder, step_runner
from pipeline.errors import AudioError
from pipeline.records import FRAME_SAMPLES

CHUNKS_AHEAD = 2  # decoded chunks that wait for each clip
GATHER_S = 0.01  # how long a step waits for the chunks of further slots


class SampleStream(Protocol):
    """A recording that is being decoded (`audio.AudioStream`): blocks of float32 [n] at 24 kHz."""

    sample_rate: int  # Hz, of the source
    num_channels: int  # of the source

    @property
    def samples(self) -> int: ...  # of the source, decoded so far
    def __iter__(self) -> Iterator[np.ndarray]: ...
    def close(self) -> None: ...


class Cancelled(Exception):
    """The clip was taken back before it was finished."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A finished clip. codes: uint16 [num_codebooks, num_frames]; the rest is of its source."""

    codes: np.ndarray
    duration: float  # seconds
    sample_rate: int  # Hz
    num_channels: int


@dataclass(slots=True)
class EngineStats:
    """Counters that only grow; reading them while the engine runs is harmless."""

    steps: int = 0
    busy_slot_steps: int = 0  # slots that carried a chunk, summed over steps
    frames: int = 0
    step_seconds: float = 0.0
    starved_seconds: float = 0.0  # slots were busy, but no chunk was decoded yet


class Clip:
    """One recording on its way: decoded ahead in the pool, taken chunk by chunk by the engine's thread."""

    def __init__(self, open_stream: Callable[[], SampleStream], chunk_samples: int):
        self.future: Future[Encoded] = Future()
        self._open_stream = open_stream
        self._stream: SampleStream | None = None
        self._blocks: Iterator[np.ndarray] | None = None
        self._chunk_samples = chunk_samples
        self._rest = np.empty(0, np.float32)
        self.ready: deque[tuple[np.ndarray, bool]] = deque()  # samples, at most a chunk; are they the last
        self.error: BaseException | None = None
        self.decoded = False  # to its end
        self.refilling = False
        self.refill_since: float | None = None  # when the pool's thread began to work on it
        self.cancelled = False
        self.num_samples = 0  # at 24 kHz
        self.codes: list[np.ndarray] = []
        self.frames_done = 0

    def decode_ahead(self) -> None:
        """Decode until enough chunks wait or the stream ends. Runs in a pool thread, one at a time for a clip."""
        if self._blocks is None:
            self._stream = self._open_stream()
            self._blocks = iter(self._stream)
        while len(self.ready) < CHUNKS_AHEAD and not self.decoded and not self.cancelled:
            parts, held = [self._rest], len(self._rest)
            while held <= self._chunk_samples:  # one sample more than a chunk tells that it isn't the last
                block = next(self._blocks, None)
                if block is None:
                    self.decoded = True
                    break
                parts.append(block)
                held += len(block)
            samples = np.concatenate(parts) if len(parts) > 1 else parts[0]
            self._cut(samples)
        if self.decoded or self.cancelled:
            self.close()

    def _cut(self, samples: np.ndarray) -> None:
        """Move all whole chunks of `samples` to `ready`; at the end of the stream, the tail as well."""
        size = self._chunk_samples
        whole = max(0, (len(samples) - 1) // size)
        for i in range(whole):
            self.ready.append((samples[i * size : (i + 1) * size], False))
        self._rest = samples[whole * size :]
        self.num_samples += whole * size
        if not self.decoded:
            return
        if not len(self._rest):
            raise AudioError("empty", "the recording has no samples")
        self.num_samples += len(self._rest)
        self.ready.append((self._rest, True))
        self._rest = np.empty(0, np.float32)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def encoded(self) -> Encoded:
        """The finished clip, its codes cut to ceil(samples / 1920) frames."""
        assert self._stream is not None
        num_frames = -(-self.num_samples // FRAME_SAMPLES)
        codes = np.concatenate(self.codes, axis=1)[:, :num_frames]
        stream = self._stream
        return Encoded(codes, stream.samples / stream.sample_rate, stream.sample_rate, stream.num_channels)


@dataclass(slots=True)
class _Slots:
    """Which clip sits in which slot, and which slots must be reset before the next step."""

    clips: list[Clip | None]
    stale: list[bool] = field(default_factory=list)

    def free(self) -> list[int]:
        return [i for i, clip in enumerate(self.clips) if clip is None]

    def busy(self) -> list[tuple[int, Clip]]:
        return [(i, clip) for i, clip in enumerate(self.clips) if clip is not None]


@dataclass(frozen=True, slots=True)
class _Chunk:
    """The next samples of the clip in a slot: float32 [n], at most a chunk."""

    slot: int
    clip: Clip
    samples: np.ndarray
    last: bool


@dataclass(frozen=True, slots=True)
class _Step:
    """A step that was launched, and whose chunks are in it."""

    work: list[_Chunk]
    pending: Pending


class Engine:
    """Holds one model and `slots` slots; encodes whatever clips are submitted, first come, first served.

    The codes of a clip don't depend on the slot, on its neighbours or on the chunk (the codec's contract). `submit`
    may be called from any thread. Memory is bounded by the clips submitted: each holds `CHUNKS_AHEAD` chunks and its
    codes, so callers bound how many they submit.
    """

    def __init__(
        self,
        model: StepEncoder,
        *,
        slots: int,
        chunk_frames: int,
        device: str = "cpu",
        decode_threads: int = 1,
        open_runner: Callable[[StepEncoder, int, int, torch.device], Runner] = step_runner,
    ):
        """open_runner: how the model's steps are run; by default, as suits the device."""
        self.slots = slots
        self.chunk_samples = chunk_frames * FRAME_SAMPLES
        self.chunk_frames = chunk_frames
        self.stats = EngineStats()
        self._open_runner = lambda: open_runner(model, slots, chunk_frames, torch.device(device))
        self._pool = ThreadPoolExecutor(decode_threads, thread_name_prefix="decode")
        self._waiting: deque[Clip] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._failure: BaseException | None = None
        self._alive: set[Clip] = set()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def submit(self, open_stream: Callable[[], SampleStream]) -> Clip:
        """Queue a recording; `clip.future` gives an `Encoded`, or raises what decoding it raised."""
        clip = Clip(open_stream, self.chunk_samples)
        with self._changed:
            if self._failure is not None:
                raise RuntimeError("the engine has failed") from self._failure
            if self._closed:
                raise RuntimeError("the engine is closed")
            self._alive.add(clip)
            self._waiting.append(clip)
            self._refill(clip)
            self._changed.notify()
        return clip

    def cancel(self, clip: Clip) -> None:
        """Take a clip back; its future raises `Cancelled`. A finished clip is left as it is."""
        with self._changed:
            clip.cancelled = True
            self._changed.notify()

    def stuck(self, now: float, timeout_s: float) -> list[Clip]:
        """Clips that a decoding thread has worked on for longer than `timeout_s` without giving a chunk."""
        with self._changed:
            return [c for c in self._alive if c.refill_since is not None and now - c.refill_since > timeout_s]

    def close(self) -> None:
        """Stop; clips that aren't finished raise `Cancelled`."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------ decoding ahead

    def _refill(self, clip: Clip) -> None:
        """Have the pool decode ahead, unless it does already. Called with the lock held."""
        over = clip.refilling or clip.decoded or clip.error or clip.cancelled or self._closed
        if not over and len(clip.ready) < CHUNKS_AHEAD:
            clip.refilling = True
            self._pool.submit(self._decode, clip)

    def _decode(self, clip: Clip) -> None:
        clip.refill_since = time.monotonic()
        error: BaseException | None = None
        try:
            clip.decode_ahead()
        except BaseException as caught:  # noqa: BLE001 - the border of a row: the clip's future raises it
            error = caught
            clip.close()
        with self._changed:
            clip.refill_since = None
            clip.refilling = False
            clip.error = error
            self._refill(clip)  # the engine may have taken chunks since the last look
            self._changed.notify()

    # ------------------------------------------------------------ the engine's thread

    def _run(self) -> None:
        slots = _Slots([None] * self.slots, [True] * self.slots)
        pending: deque[_Step] = deque()
        try:
            with torch.inference_mode():  # thread-local, so it is set here
                runner = self._open_runner()
                while (work := self._next_step(slots, wait=not pending)) is not None:
                    started = time.monotonic()
                    if work:
                        pending.append(self._launch(slots, work, runner))
                    if pending and (not work or len(pending) > runner.ahead):
                        self._collect(pending.popleft())
                    self.stats.step_seconds += time.monotonic() - started
        except BaseException as error:  # noqa: BLE001 - every clip learns of it, and so does the next `submit`
            self._fail(error)
        else:
            self._fail(Cancelled("the engine was closed"))

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = error
            clips, self._alive = list(self._alive), set()
            self._waiting.clear()
        for clip in clips:
            clip.cancelled = True
            clip.future.set_exception(error)

    def _next_step(self, slots: _Slots, *, wait: bool) -> list[_Chunk] | None:
        """Wait until a step is worth taking, and take its chunks. None: closed; []: none is ready, without `wait`."""
        gather_until: float | None = None
        with self._changed:
            while True:
                if self._closed:
                    return None
                self._drop_ended(slots)
                self._admit(slots)
                busy = slots.busy()
                ready = [(i, clip) for i, clip in busy if clip.ready]
                now = time.monotonic()
                if ready and gather_until is None:
                    gather_until = now + GATHER_S
                if ready and (len(ready) == len(busy) or now >= (gather_until or 0)):
                    break
                if not ready and not wait:
                    return []
                self._changed.wait(None if not ready else max(0.0, (gather_until or now) - now))
                if busy and not ready:
                    self.stats.starved_seconds += time.monotonic() - now
            work = []
            for i, clip in ready:
                chunk, last = clip.ready.popleft()
                self._refill(clip)
                work.append(_Chunk(i, clip, chunk, last))
            return work

    def _drop_ended(self, slots: _Slots) -> None:
        """Let go of clips that failed or were cancelled, once their decoded chunks are used up or useless."""
        for i, clip in slots.busy():
            if self._ended(clip):
                slots.clips[i], slots.stale[i] = None, True
        for clip in [c for c in self._waiting if self._ended(c)]:
            self._waiting.remove(clip)

    def _ended(self, clip: Clip) -> bool:
        if not (clip.cancelled or clip.error):
            return False
        if clip in self._alive:
            self._alive.discard(clip)
            clip.ready.clear()
            clip.future.set_exception(clip.error or Cancelled("the clip was cancelled"))
        return True

    def _admit(self, slots: _Slots) -> None:
        for i in slots.free():
            if not self._waiting:
                return
            slots.clips[i] = self._waiting.popleft()
            slots.stale[i] = True

    def _launch(self, slots: _Slots, work: list[_Chunk], runner: Runner) -> _Step:
        """Begin a step. A clip whose last chunk is on its way needs its slot no more."""
        fresh = np.array(slots.stale)
        slots.stale = [False] * self.slots
        pending = runner.launch([(chunk.slot, chunk.samples) for chunk in work], fresh)
        for chunk in work:
            if chunk.last:
                slots.clips[chunk.slot], slots.stale[chunk.slot] = None, True
        self.stats.steps += 1
        self.stats.busy_slot_steps += len(work)
        return _Step(work, pending)

    def _collect(self, step: _Step) -> None:
        """Wait for a step's codes and give them to their clips."""
        done = step.pending.result()
        for chunk in step.work:
            self._take_codes(chunk, done.codes[chunk.slot], bool(done.finite[chunk.slot]))

    def _take_codes(self, chunk: _Chunk, codes: np.ndarray, finite: bool) -> None:
        clip = chunk.clip
        if not finite:
            second = clip.frames_done / 12.5
            with self._changed:
                clip.error = AudioError("not_finite", f"the model's latents are not finite {second:.1f} s in", "encode")
                self._ended(clip)
            return
        clip.codes.append(codes)
        clip.frames_done += codes.shape[1]
        self.stats.frames += codes.shape[1]
        if chunk.last:
            with self._changed:
                alive = clip in self._alive
                self._alive.discard(clip)
            if alive:  # else an earlier chunk has failed it
                clip.future.set_result(clip.encoded())
