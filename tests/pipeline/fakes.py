"""Stand-ins for tests: an encoder whose codes depend on all that came before in its clip, streams, a writer."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from pipeline.records import FRAME_SAMPLES, EncodedRow, FailedRow, Shard, ShardResult

NUM_CODEBOOKS = 3


@dataclass(frozen=True, slots=True)
class FakeStep:
    codes: torch.Tensor
    finite: torch.Tensor
    state: torch.Tensor


class FakeEncoder:
    """Codes are running sums of whole-numbered samples, so a lost, doubled or foreign chunk changes all that follow."""

    def __init__(self, scale: float = 1.0) -> None:
        self.steps = 0
        self.scale = scale  # what makes whole numbers of the samples: 32768 for 16-bit audio

    def new_state(self, slots: int) -> torch.Tensor:
        return torch.zeros(slots)

    def reset_slots(self, state: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.where(mask, torch.zeros_like(state), state)

    def encode_step(self, chunk: torch.Tensor, state: torch.Tensor, active: torch.Tensor | None = None) -> FakeStep:
        self.steps += 1
        frames = self.scale * chunk.reshape(chunk.shape[0], -1, FRAME_SAMPLES).sum(-1)
        sums = state[:, None] + frames.cumsum(1)
        after = sums[:, -1] if active is None else torch.where(active, sums[:, -1], state)
        finite = torch.isfinite(frames).all(1)
        codes = torch.stack([(torch.nan_to_num(sums) + k) % 2048 for k in range(NUM_CODEBOOKS)], 1).long()
        return FakeStep(codes, finite, after)


def codes_of(samples: np.ndarray) -> np.ndarray:
    """What `FakeEncoder` gives for a whole clip: uint16 [NUM_CODEBOOKS, ceil(n / 1920)]."""
    padded = np.zeros(-(-len(samples) // FRAME_SAMPLES) * FRAME_SAMPLES)
    padded[: len(samples)] = samples
    sums = padded.reshape(-1, FRAME_SAMPLES).sum(1).cumsum()
    return np.stack([(sums + k) % 2048 for k in range(NUM_CODEBOOKS)]).astype(np.uint16)


class FakeStream:
    """Samples in blocks of drawn sizes; raises `error` at the end if there is one."""

    def __init__(self, samples: np.ndarray, blocks: list[int] | None = None, error: Exception | None = None):
        self.sample_rate, self.num_channels, self.samples = 24000, 1, 0
        self.closed = False
        self._samples, self._blocks, self._error = samples, blocks or [1000], error

    def __iter__(self) -> Iterator[np.ndarray]:
        at, turn = 0, 0
        while at < len(self._samples):
            block = self._samples[at : at + self._blocks[turn % len(self._blocks)]]
            at, turn = at + len(block), turn + 1
            self.samples = at
            yield block.astype(np.float32)
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self.closed = True


@dataclass
class MemoryWriter:
    """A `worker.Writer` that keeps everything in memory."""

    shard: Shard
    done: set[int] = field(default_factory=set)
    encoded: list[list[EncodedRow]] = field(default_factory=list)
    failed: list[FailedRow] = field(default_factory=list)
    checkpoints: int = 0

    def add(self, rows: list[EncodedRow]) -> None:
        self.encoded.append(rows)

    def fail(self, row: FailedRow) -> None:
        self.failed.append(row)

    def tick(self) -> None:
        pass

    def checkpoint(self) -> None:
        self.checkpoints += 1

    def finish(self, rows_read: int) -> ShardResult:
        skipped = sum(row.stage == "filter" for row in self.failed)
        clips = [clip for rows in self.encoded for clip in rows]
        frames = sum(clip.codes.shape[1] for clip in clips)
        seconds = sum(rows[0].duration for rows in self.encoded)
        encoded, failed = len(self.encoded) + len(self.done), len(self.failed) - skipped
        return ShardResult(
            self.shard.index, 1, rows_read, encoded, failed, skipped, len(clips), frames, seconds, files=()
        )


def whole_numbers(n: int, seed: int = 0) -> np.ndarray:
    """n samples that are small whole numbers: their float32 sums are exact."""
    return np.random.default_rng(seed).integers(0, 3, n).astype(np.float32)
