"""One finished shard against its marker: bytes, hashes, schema, counts, codes, lengths. Words what isn't right.

Which shards there are and what comes of them is left to `verification.py`.
"""

import hashlib
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jobs.code_files import CodeFile, CodeFileError
from pipeline.errors import RunDirError
from pipeline.marker import Marker, PublishedFile
from pipeline.parts import FAILED_SCHEMA
from pipeline.records import FRAME_SAMPLES, SAMPLE_RATE
from pipeline.run_dir import RunDir
from pipeline.schema import run_facts

HASH_BLOCK = 4 << 20  # bytes
PLACES = ("shard", "row", "channel", "num_frames", "duration", "num_channels")
FRAMES_TOLERANCE = 1  # frames by which a length may differ from the duration: resampling rounds
SECONDS_TOLERANCE = 1e-6  # of a sum of durations, relative


@dataclass(slots=True)
class ShardReport:
    """What was found in one shard. `problems` has a line each, the file named first."""

    problems: list[str] = field(default_factory=list)
    num_files: int = 0
    num_bytes: int = 0
    clips: int = 0
    frames: int = 0


class _Wrong(Exception):
    """A file isn't right, and looking further into it makes no sense. The text doesn't name the file."""


@dataclass(slots=True)
class _Found:
    """What the files of a shard hold. rows: the source rows that each folder has, each once."""

    rows: dict[str, np.ndarray] = field(default_factory=dict)
    clips: int = 0
    frames: int = 0
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)  # of failed rows


def check_shard(run: RunDir, schema: pa.Schema | None, planned_rows: int | None, marker: Marker) -> ShardReport:
    """Read every file of a finished shard once. schema, planned_rows: None where the run's own record doesn't tell."""
    report, found, whole = ShardReport(), _Found(), True
    for file in marker.files:
        report.num_files += 1
        shown = run.storage.join(file.path)
        folder = file.path.split("/")[0]
        with tempfile.TemporaryDirectory(prefix="mimi-jobs-") as temporary:
            try:
                path = _authentic(run, file, Path(temporary))
                report.num_bytes += file.num_bytes
                if folder == "data":
                    report.problems += [f"{shown}: {line}" for line in _check_data(path, schema, run, marker, found)]
                else:
                    _check_failed(path, folder, marker, found)
            except (_Wrong, RunDirError, pa.ArrowException, ValueError) as error:  # ValueError: text that isn't UTF-8
                text = " ".join(str(error).split())[:300]
                report.problems.append(text if text.startswith(shown) else f"{shown}: {text}")
                whole = False
    report.clips, report.frames = found.clips, found.frames
    marker_file = run.storage.join(f"_state/{marker.shard:05d}.json")
    lines = _own_sums(marker, planned_rows) + (_against_files(marker, found) if whole else [])
    report.problems += [f"{marker_file}: {line}" for line in lines]
    return report


def _authentic(run: RunDir, file: PublishedFile, temporary: Path) -> Path:
    """A local copy of the file, its size and hash as the marker says."""
    try:
        size = run.storage.size(file.path)
        if size != file.num_bytes:
            what = "is missing" if size is None else f"has {size:,} bytes, its marker says {file.num_bytes:,}"
            raise _Wrong(what)
        path = run.storage.local_copy(file.path, temporary)
        digest = hashlib.sha256()
        with path.open("rb") as opened:
            while block := opened.read(HASH_BLOCK):
                digest.update(block)
    except OSError as error:
        raise _Wrong(f"can't be read: {error.strerror or error}") from error
    if digest.hexdigest() != file.sha256:
        raise _Wrong(f"has sha256 {digest.hexdigest()[:12]}..., its marker says {file.sha256[:12]}...: it was changed")
    return path


# ---- data


def _check_data(path: Path, schema: pa.Schema | None, run: RunDir, marker: Marker, found: _Found) -> list[str]:
    try:
        file = CodeFile.open(str(path), fsspec.filesystem("file"))
        if schema is not None:
            _check_schema(file.parquet.schema_arrow, schema, run)
        lines = _check_batches(file, run, marker, found)
    except (CodeFileError, pa.ArrowException) as error:
        raise _Wrong(" ".join(str(error).split())[:300]) from error
    return lines


def _check_schema(have: pa.Schema, want: pa.Schema, run: RunDir) -> None:
    if have.names != want.names:
        odd = sorted(set(have.names) ^ set(want.names)) or ["the order of columns"]
        raise _Wrong(f"has another schema than the run: {', '.join(odd[:5])}")
    for field_have, field_want in zip(have, want, strict=True):
        if not field_have.type.equals(field_want.type):
            raise _Wrong(f"column {field_have.name} holds {field_have.type}, the run's schema says {field_want.type}")
    try:
        fingerprint = run_facts(have).get("fingerprint")
    except ValueError:
        fingerprint = "none that can be read"
    if fingerprint != run.manifest.get("fingerprint"):
        raise _Wrong(f"is of another job: its fingerprint is {str(fingerprint)[:12]}")


def _check_batches(file: CodeFile, run: RunDir, marker: Marker, found: _Found) -> list[str]:
    wanted_k = ((run.manifest.get("facts") or {}).get("model") or {}).get("num_codebooks")
    lines: dict[str, str] = {}  # what is wrong -> the line, the first of its kind
    row, channel = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for batch in file.batches(PLACES):
        missing = [name for name in PLACES if name not in batch.others.schema.names]
        if missing:
            raise _Wrong(f"has no column {', '.join(missing)}")
        if len(batch.frames) != batch.others.num_rows:  # not [K][T]: what it is instead is said at the file's end
            continue
        columns = {name: _numbers(batch.others, name) for name in PLACES}
        if len(batch.frames) and wanted_k is not None and batch.num_codebooks != wanted_k:
            lines.setdefault("k", f"has {batch.num_codebooks} codebooks, the job asks for {wanted_k}")
        _check_lengths(columns, batch.frames, lines)
        if (columns["shard"] != marker.shard).any():
            lines.setdefault("shard", f"holds rows of another shard than {marker.shard}")
        row.append(columns["row"])
        channel.append(columns["channel"])
        found.clips += len(batch.frames)
        found.frames += int(batch.frames.sum())
        new = np.diff(columns["row"], prepend=row[-2][-1] if len(row[-2]) else -1) != 0
        found.seconds += float(columns["duration"][new].sum())
    rows, channels = np.concatenate(row), np.concatenate(channel)
    _check_order(rows, channels, marker, lines)
    found.rows["data"] = np.unique(rows)
    return list(lines.values())


def _numbers(batch: pa.RecordBatch, name: str) -> np.ndarray:
    """A column as numbers, null as -1."""
    return batch.column(name).fill_null(-1).to_numpy(zero_copy_only=False)


def _check_lengths(columns: dict[str, np.ndarray], frames: np.ndarray, lines: dict[str, str]) -> None:
    at = columns["row"]
    wrong = np.flatnonzero(columns["num_frames"] != frames)
    if len(wrong):
        i = wrong[0]
        lines.setdefault("frames", f"row {at[i]} has {frames[i]} frames, num_frames says {columns['num_frames'][i]}")
    duration = columns["duration"]
    finite = np.isfinite(duration) & (duration > 0)
    expected = np.ceil(np.rint(np.where(finite, duration, 0) * SAMPLE_RATE) / FRAME_SAMPLES)
    wrong = np.flatnonzero(~finite | (np.abs(expected - frames) > FRAMES_TOLERANCE) | (frames < 1))
    if len(wrong):
        i = wrong[0]
        words = f"row {at[i]} has {frames[i]} frames, {duration[i]:g} s of sound are {expected[i]:.0f}"
        lines.setdefault("duration", words + (f" (and {len(wrong) - 1} more rows)" if len(wrong) > 1 else ""))


def _check_order(rows: np.ndarray, channels: np.ndarray, marker: Marker, lines: dict[str, str]) -> None:
    if not len(rows):
        return
    if rows.min() < 0 or rows.max() >= marker.rows_read:
        odd = rows[(rows < 0) | (rows >= marker.rows_read)][0]
        lines["range"] = f"holds row {odd}, the shard has rows 0 to {marker.rows_read - 1}"
    order = np.lexsort((channels, rows))
    again = np.flatnonzero((np.diff(rows[order]) == 0) & (np.diff(channels[order]) == 0))
    if len(again):
        lines["twice"] = f"row {rows[order][again[0]]} is in it twice ({len(again)} such rows)"
    if (order != np.arange(len(order))).any():
        lines["order"] = "its rows aren't in source order"


# ---- failed and skipped rows


def _check_failed(path: Path, folder: str, marker: Marker, found: _Found) -> None:
    try:
        table = pq.read_table(path, memory_map=False)
    except (pa.ArrowException, OSError) as error:
        raise _Wrong(f"can't be read as parquet: {' '.join(str(error).split())[:200]}") from error
    missing = [name for name in FAILED_SCHEMA.names if name not in table.column_names]
    if missing:
        raise _Wrong(f"has no column {', '.join(missing)}")
    rows: Any = table.column("row").to_numpy()
    found.rows[folder] = np.unique(rows)
    if len(found.rows[folder]) != len(rows):
        raise _Wrong("lists a row twice")
    if (table.column("shard").to_numpy() != marker.shard).any():
        raise _Wrong(f"lists rows of another shard than {marker.shard}")
    if folder == "errors":
        found.kinds.update(table.column("kind").to_pylist())


# ---- sums


def _own_sums(marker: Marker, planned_rows: int | None) -> list[str]:
    """What the marker's numbers must be, whatever the files hold."""
    lines = []
    total = marker.encoded + marker.failed + marker.skipped
    if total != marker.rows_read:
        parts = f"{marker.encoded} encoded, {marker.failed} failed, {marker.skipped} skipped"
        lines.append(f"{parts} are {total} rows, it says {marker.rows_read} were read")
    if planned_rows not in (None, marker.rows_read):
        lines.append(f"says {marker.rows_read} rows were read, the plan has {planned_rows}")
    if sum(marker.failures.values()) != marker.failed:
        lines.append(f"says {marker.failed} rows failed, and lists {sum(marker.failures.values())} by kind")
    return lines


def _against_files(marker: Marker, found: _Found) -> list[str]:
    """The marker's counts against what its files hold; only where all could be read."""
    empty = np.empty(0, np.int64)
    rows = {folder: found.rows.get(folder, empty) for folder in ("data", "errors", "skipped")}
    lines = []
    pairs = (
        ("rows encoded", marker.encoded, len(rows["data"])),
        ("rows failed", marker.failed, len(rows["errors"])),
        ("rows skipped", marker.skipped, len(rows["skipped"])),
        ("rows of codes", marker.clips, found.clips),
        ("frames", marker.frames, found.frames),
    )
    lines += [f"says {said:,} {what}, its files hold {held:,}" for what, said, held in pairs if said != held]
    if abs(marker.audio_seconds - found.seconds) > SECONDS_TOLERANCE * max(1.0, marker.audio_seconds):
        lines.append(f"says {marker.audio_seconds:.3f} s of audio, its files hold {found.seconds:.3f} s")
    if dict(marker.failures) != dict(found.kinds):
        lines.append(f"says failures {_kinds(marker.failures)}, errors/ holds {_kinds(found.kinds)}")
    every = np.concatenate(list(rows.values()))
    if len(np.unique(every)) != len(every):
        values, counts = np.unique(every, return_counts=True)
        lines.append(f"row {values[counts > 1][0]} is both encoded and listed as failed or skipped")
    elif len(every) == marker.rows_read and len(every) and every.max() != marker.rows_read - 1:
        lines.append("its files don't hold every row that was read")
    return lines


def _kinds(kinds: dict[str, int] | Counter[str]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())) or "none"
