"""Batches of codes to running counts, by whole columns: the arithmetic of `inspection.py`, which asks and words."""

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from jobs.code_files import CODEBOOK_SIZE, CodeBatch
from pipeline.records import FRAME_SAMPLES, SAMPLE_RATE

pc: Any = pyarrow.compute  # its functions are made when it is imported, where no type checker sees them

FRAME_RATE = SAMPLE_RATE / FRAME_SAMPLES  # 12.5 a second
MAX_KEYS_COMPARED = 20_000_000  # of which duplicates are looked for: beyond, memory would be gigabytes
BASE = 0x9E3779B97F4A7C15  # of the hash of a row's codes: odd, and 5 modulo 8, so that its powers don't repeat
CONSTANT_SHARE = 0.9  # of a clip's steps on which its first code stays as it was


@dataclass(slots=True)
class Tally:
    """Running counts over batches and files."""

    files: int = 0
    bytes: int = 0
    code_bytes: int = 0  # of the codes alone
    rows: int = 0
    frames: int = 0
    seconds: float = 0.0
    constant_clips: int = 0
    num_codebooks: int = 0
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # [K * 2048]
    lengths: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # clips of each number of frames
    sample_rates: Counter[int] = field(default_factory=Counter)
    channels: Counter[int] = field(default_factory=Counter)
    keys: list[Any] = field(default_factory=list)
    signatures: list[np.ndarray] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)

    def count(self, batch: CodeBatch) -> None:
        k, frames = batch.num_codebooks, batch.frames
        if not len(frames) or not k:
            return
        self.num_codebooks = k
        self.rows += len(frames)
        self.frames += int(frames.sum())
        self.counts = _grown_sum(self.counts, _count_codes(batch.codes, frames, k))
        self.lengths = _grown_sum(self.lengths, np.bincount(frames))
        self.seconds += _seconds(batch)
        for column, counter in (("sample_rate", self.sample_rates), ("num_channels", self.channels)):
            counter.update(_value_counts(batch.others, column))
        self.keys += _keys(batch.others)
        starts = np.cumsum(np.concatenate([[0], frames * k]))[:-1]  # of each row in the flat codes
        starts, frames = starts[frames > 0], frames[frames > 0]
        if len(frames):
            self.constant_clips += _count_constant(batch.codes, starts, frames)
            self.signatures.append(_signatures(batch.codes, starts, frames))

    def refuses(self, other: "Tally") -> str | None:
        """Why another file doesn't belong to the same set, if it doesn't."""
        if self.rows and other.rows and self.num_codebooks != other.num_codebooks:
            return f"has {other.num_codebooks} codebooks, the files before it {self.num_codebooks}; left out"
        return None

    def add(self, other: "Tally") -> None:
        for name in ("files", "bytes", "code_bytes", "rows", "frames", "seconds", "constant_clips"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.num_codebooks = self.num_codebooks or other.num_codebooks
        self.counts = _grown_sum(self.counts, other.counts)
        self.lengths = _grown_sum(self.lengths, other.lengths)
        self.sample_rates.update(other.sample_rates)
        self.channels.update(other.channels)
        self.metadata = self.metadata or other.metadata
        self.keys += other.keys
        self.signatures += other.signatures
        if self.rows > MAX_KEYS_COMPARED:
            self.keys, self.signatures = [], []


def _grown_sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if len(a) < len(b):
        a, b = b, a
    a = a.copy()
    a[: len(b)] += b
    return a


def _count_codes(codes: np.ndarray, frames: np.ndarray, k: int) -> np.ndarray:
    """int64 [K * 2048]: how often each entry of each codebook occurs. uint16 holds every place, since K <= 32."""
    offsets = np.repeat(np.tile(np.arange(k, dtype=np.uint16) * CODEBOOK_SIZE, len(frames)), np.repeat(frames, k))
    return np.bincount(codes + offsets, minlength=k * CODEBOOK_SIZE)


def _seconds(batch: CodeBatch) -> float:
    if "duration" in batch.others.schema.names:
        column = batch.others.column("duration")
        if pa.types.is_floating(column.type) and not column.null_count:
            seconds = float(pc.sum(column).as_py())
            if math.isfinite(seconds):
                return seconds
    return float(batch.frames.sum()) / FRAME_RATE


def _value_counts(others: pa.RecordBatch, name: str) -> dict[int, int]:
    if name not in others.schema.names or not pa.types.is_integer(others.column(name).type):
        return {}
    counts = pc.value_counts(others.column(name).drop_null())
    return dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True))


def _keys(others: pa.RecordBatch) -> list[Any]:
    """The keys of each recording: where each channel is a row, of the first channel's."""
    if "key" not in others.schema.names:
        return []
    keys = others.column("key")
    if not (pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type)):
        return []
    keys = keys.cast(pa.large_string())
    if "channel" in others.schema.names:
        keys = keys.filter(pc.fill_null(pc.equal(others.column("channel"), 0), True))
    return [keys.drop_null()]


def _count_constant(codes: np.ndarray, starts: np.ndarray, frames: np.ndarray) -> int:
    """Clips of two frames or more whose first code stays as it was on `CONSTANT_SHARE` of the steps.

    Five probes leave few clips to look at in full.
    """
    last = np.maximum(frames - 1, 0)
    usable = frames >= 2
    starts, last = starts[usable], last[usable]
    probes = np.stack([codes[starts + last * i // 4] for i in range(1, 5)])
    likely = (probes == probes[0]).sum(axis=0) >= 3
    starts, steps = starts[likely], last[likely]
    if not len(steps):
        return 0
    first = np.cumsum(np.concatenate([[0], steps]))[:-1]
    places = np.arange(int(steps.sum())) + np.repeat(starts - first, steps)
    changes = np.add.reduceat((codes[places] != codes[places + 1]).astype(np.int64), first)
    return int((changes <= (1 - CONSTANT_SHARE) * steps).sum())


def _signatures(codes: np.ndarray, starts: np.ndarray, frames: np.ndarray) -> np.ndarray:
    """uint64 [rows]: a hash of each row's codes, so that equal rows have equal ones and others, in practice, don't.

    Each row as a polynomial in `BASE` modulo 2**64. All rows are summed in one pass, over powers that count from the
    batch's start; the inverse power of where a row starts makes it independent of that.
    """
    powers, inverses = _powers(1 << (len(codes) - 1).bit_length())
    sums = np.add.reduceat(codes * powers[: len(codes)], starts) * inverses[starts]
    return _mixed(sums + _mixed(frames.astype(np.uint64)))


@lru_cache(maxsize=2)
def _powers(count: int) -> tuple[np.ndarray, np.ndarray]:
    """uint64 [count] each: powers of `BASE` modulo 2**64 from the 0th, and their inverses."""
    steps = (np.full(count, base, np.uint64) for base in (BASE, pow(BASE, -1, 1 << 64)))
    powers, inverses = (np.cumprod(np.concatenate([[np.uint64(1)], step[1:]])) for step in steps)
    return powers, inverses


def _mixed(values: np.ndarray) -> np.ndarray:
    """uint64 spread over all bits (the finaliser of splitmix64, Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
