"""Clips of a run, a folder or a file by their keys or places, with where they came from and whose weights made them."""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from jobs.code_files import CodeFile, CodeFileError
from jobs.locations import CodeFiles
from pipeline.codes import read_codes
from pipeline.errors import ConfigError, MimiJobsError
from pipeline.run_dir import RunDir

if TYPE_CHECKING:
    import torch

    from mimi import Mimi

ORIGIN = ("shard", "row", "channel", "duration", "sample_rate", "num_channels")


@dataclass(frozen=True, slots=True)
class Clip:
    """A row of codes. codes: uint16 [K, T]. columns: those of `ORIGIN` that its file has, and others asked for."""

    file: str  # as messages say it
    key: str | None
    codes: np.ndarray
    columns: dict[str, Any]

    @property
    def recording(self) -> tuple[Any, Any, Any]:
        """The same for the channels of one recording, and for no other row."""
        return self.file if "row" not in self.columns else "", self.columns.get("shard"), self.columns.get("row")


@dataclass(frozen=True, slots=True)
class WeightsNote:
    """The weights that codes were made with, as they are noted beside them."""

    name: str
    revision: str | None = None
    sha256: str | None = None

    @property
    def is_random(self) -> bool:
        return self.name.startswith("random:")


def read_clips(
    found: CodeFiles,
    name: str,
    *,
    rows: Collection[int] | None = None,
    keys: Collection[str] | None = None,
    columns: Collection[str] = ORIGIN,
    storage_options: dict[str, Any] | None = None,
) -> Iterator[Clip]:
    """Some rows of one of the files; columns that it lacks are left out. MimiJobsError that names the file."""
    shown = found.show(name)
    try:
        have = CodeFile.open(name, found.fs).parquet.schema_arrow.names
    except CodeFileError as error:
        raise MimiJobsError(f"{shown}: {error}") from error
    present = [column for column in columns if column in have]
    try:
        for stored in read_codes(found.fs.unstrip_protocol(name), present, rows, keys, storage_options):
            yield Clip(shown, stored.key, stored.codes, stored.columns)
    except MimiJobsError as error:
        raise MimiJobsError(str(error).replace(found.fs.unstrip_protocol(name), shown)) from error


def weights_of(found: CodeFiles, storage_options: dict[str, Any] | None = None) -> WeightsNote | None:
    """What the run's manifest notes, else what the first file does; None where nothing is noted."""
    if found.unfinished_shards is not None:
        manifest = RunDir.open(found.path, storage_options).manifest
        noted = manifest.get("weights") or {}
        written = ((manifest.get("job") or {}).get("model") or {}).get("weights")
        name = noted.get("name") if not written or "${" in written else written  # made absolute, if it's a path
        return WeightsNote(str(name), noted.get("revision"), noted.get("sha256")) if name else None
    for file in found.data:
        try:
            facts = json.loads(CodeFile.open(file, found.fs).metadata.get(b"mimi_jobs", b"{}"))
        except (CodeFileError, ValueError):
            continue
        if isinstance(facts, dict) and facts.get("weights"):
            return WeightsNote(str(facts["weights"]), None, facts.get("weights_sha256"))
    return None


def load_mimi(note: WeightsNote, num_codebooks: int, *, dtype: "torch.dtype | None" = None) -> "Mimi":
    """The model that made the codes. ConfigError, one line, where it can't be had or isn't the same any more."""
    import torch

    from mimi import CheckpointError, Mimi
    from mimi.checkpoint import inspect_checkpoint, weights_sha256

    try:
        if note.sha256 is not None:
            sha256 = weights_sha256(inspect_checkpoint(note.name, note.revision))
            if sha256 != note.sha256:
                was = f"the codes were made with sha256 {note.sha256[:12]}..., these have {sha256[:12]}..."
                raise ConfigError([f"weights: {note.name} aren't what they were: {was}; put those back"])
        return Mimi.load(note.name, revision=note.revision, num_codebooks=num_codebooks, dtype=dtype or torch.float32)
    except CheckpointError as error:
        raise ConfigError([str(error)]) from error
