"""The frozen records that flow between the stages. They hold data and nothing else: no I/O, no torch, no Ray."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

SAMPLE_RATE = 24_000  # Hz, of what the codec takes
FRAME_SAMPLES = 1920  # samples of a frame: 12.5 frames a second


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of the dataset, with what tells later whether it is still the same file."""

    url: str  # absolute local path or fsspec URL
    size: int | None = None  # bytes
    version: str | None = None  # modification time (local) or etag (remote)


@dataclass(frozen=True, slots=True)
class Shard:
    """The unit of work, of output and of resumption: the same rows in the same order each time it is read."""

    index: int
    split: str
    files: tuple[SourceFile, ...]
    row_groups: tuple[int, int] | None = None  # of the one parquet file: [start, stop)
    rows: tuple[int, int | None] | None = None  # of what the files yield: [start, stop), None: to the end
    num_rows: int | None = None  # where the plan knows it
    num_bytes: int | None = None  # of source data, where the plan knows it


@dataclass(frozen=True, slots=True)
class Audio:
    """Undecoded audio: the file's bytes, or where the file lies. Bytes win where both are there."""

    data: bytes | None
    path: str | None  # absolute local path or fsspec URL; with `data`, only a name


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a shard, its audio not decoded. `row` counts from 0 within the shard."""

    shard: int
    row: int
    key: str
    audio: Audio | None  # None: the dataset has null there
    kept: "pa.RecordBatch"  # one row: the kept columns under their output names, in the run's schema


@dataclass(frozen=True, slots=True)
class EncodedRow:
    """The codes of one row (of one of its channels where `channel` isn't None).

    codes: uint16 [num_codebooks, num_frames].
    """

    row: Row
    channel: int | None
    codes: "np.ndarray"
    duration: float  # seconds of source audio
    sample_rate: int  # Hz, of the source
    num_channels: int  # of the source


@dataclass(frozen=True, slots=True)
class FailedRow:
    """A row without codes, and why. `kind` is one of unreadable, truncated, empty, not_finite, crashed, timeout.

    A row that a filter left out is one of these too, with stage `filter` and kind `too_short` or `too_long`.
    """

    shard: int
    row: int
    key: str
    stage: str  # source, decode, encode, worker, filter
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A finished file that waits under a temporary name for the driver to publish it."""

    staged: str  # relative to the run directory
    final: str  # relative to the run directory
    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What became of a shard's rows. `encoded + failed + skipped == rows_read`, in source rows."""

    shard: int
    attempt: int
    rows_read: int
    encoded: int
    failed: int
    skipped: int
    clips: int  # rows of the data file: more than `encoded` where each channel is a row
    frames: int
    audio_seconds: float
    files: tuple[StagedFile, ...]
    failures: dict[str, int] = field(default_factory=dict)  # kind -> rows
    seconds: float = 0.0  # wall time of this attempt

    def __post_init__(self) -> None:
        if self.encoded + self.failed + self.skipped != self.rows_read:
            raise AssertionError(f"shard {self.shard}: rows don't add up: {self}")


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run ended. `message`: why it isn't finished, in one line."""

    finished: bool
    interrupted: bool
    message: str | None
    rows: int
    encoded: int
    failed: int
    skipped: int
    frames: int
    audio_seconds: float
    seconds: float
