"""What a run is, resolved: no `auto`, no environment references. Made at submission, given to actors."""

from dataclasses import dataclass, field
from typing import Any, Literal

Channels = Literal["mix", "first", "each"]
Precision = Literal["float32", "tf32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class InputSpec:
    """Which dataset, as the job file says it."""

    path: str
    name: str | None = None
    split: str = "train"
    data_files: Any = None  # str, list, or mapping of split to either
    data_dir: str | None = None
    revision: str | None = None
    audio_column: str | None = None
    id_column: str | None = None
    keep_columns: Literal["all"] | tuple[str, ...] = "all"
    rows_per_shard: int | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class AudioPolicy:
    """What is done with a recording; part of the fingerprint, but for the timeout."""

    channels: Channels = "mix"
    allow_truncated: bool = False
    min_seconds: float | None = None
    max_seconds: float | None = None
    row_timeout_s: float = 600.0  # without progress, not in all


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Which model, and how it is run."""

    weights: str  # hub id, folder, file or random:SEED
    revision: str | None = None
    num_codebooks: int = 8
    precision: Precision = "float32"
    device: str = "cpu"
    slots: int = 1
    chunk_frames: int = 25
    threads: int = 1  # torch threads of one actor
    decode_threads: int = 1  # of one actor


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """Where the run directory is, and how often work in progress is saved there."""

    path: str  # absolute local path or fsspec URL
    checkpoint_seconds: float = 60.0
    storage_options: dict[str, Any] = field(default_factory=dict, repr=False)
