"""A shard's work in progress: small Arrow files under `_state/NNNNN/`, each whole or absent.

What is in a part is done and need not be done again. When parts are made and what becomes of them is `writer.py`.
"""

import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.records import EncodedRow, FailedRow
from pipeline.storage import Storage

FAILED_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("shard", pa.int32()),
        pa.field("row", pa.int64()),
        pa.field("stage", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("message", pa.string()),
    ]
)
PART = re.compile(r"(part|failed)-\d{4,}-\d{4,}-[0-9a-f]{8}\.arrow|base(-failed)?\.arrow")
BASE, BASE_FAILED = "base.arrow", "base-failed.arrow"  # what an earlier run published and `retry_failed` keeps


def state_folder(shard: int) -> str:
    return f"_state/{shard:05d}"


def part_name(shard: int, kind: str, attempt: int, number: int) -> str:
    """The random end keeps an actor that was taken for dead from writing over a part of its successor."""
    return f"{state_folder(shard)}/{kind}-{attempt:04d}-{number:04d}-{secrets.token_hex(4)}.arrow"


@dataclass(slots=True)
class Part:
    """A part opened for reading: local, memory-mapped, its batches not copied."""

    name: str
    batches: list[pa.RecordBatch]

    def column(self, name: str) -> np.ndarray:
        """A numeric column of all batches, nulls as -1."""
        arrays = [batch.column(name).fill_null(-1).to_numpy(zero_copy_only=False) for batch in self.batches]
        return np.concatenate(arrays) if arrays else np.empty(0, np.int64)


def encoded_batch(rows: Sequence[EncodedRow], schema: pa.Schema) -> pa.RecordBatch:
    """Rows as columns in the run's schema. AssertionError where a row's codes are empty or not [K, T] uint16."""
    kept = pa.Table.from_batches([encoded.row.kept for encoded in rows]).combine_chunks()
    own = {
        "key": pa.array([encoded.row.key for encoded in rows], pa.string()),
        "codes": codes_array([encoded.codes for encoded in rows]),
        "num_frames": pa.array([encoded.codes.shape[1] for encoded in rows], pa.int32()),
        "duration": pa.array([encoded.duration for encoded in rows], pa.float64()),
        "sample_rate": pa.array([encoded.sample_rate for encoded in rows], pa.int32()),
        "num_channels": pa.array([encoded.num_channels for encoded in rows], pa.int16()),
        "channel": pa.array([encoded.channel for encoded in rows], pa.int16()),
        "shard": pa.array([encoded.row.shard for encoded in rows], pa.int32()),
        "row": pa.array([encoded.row.row for encoded in rows], pa.int64()),
    }
    columns = []
    for field in schema:
        column = own[field.name] if field.name in own else kept.column(field.name).combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = column.chunk(0)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def codes_array(codes: Sequence[np.ndarray]) -> pa.Array:
    """list<list<uint16>> from arrays of [num_codebooks, num_frames], whose numbers of frames may differ."""
    for item in codes:
        assert item.dtype == np.uint16 and item.ndim == 2 and item.size, f"codes of {item.dtype} {item.shape}"
    books = np.array([item.shape[0] for item in codes], np.int32)
    frames = np.array([item.shape[1] for item in codes], np.int32)
    inner = np.concatenate([[0], np.cumsum(np.repeat(frames, books))]).astype(np.int32)
    outer = np.concatenate([[0], np.cumsum(books)]).astype(np.int32)
    values = np.concatenate([np.ascontiguousarray(item).ravel() for item in codes])
    return pa.ListArray.from_arrays(outer, pa.ListArray.from_arrays(inner, pa.array(values)))


def failed_batch(rows: Sequence[FailedRow]) -> pa.RecordBatch:
    columns = {field.name: [getattr(row, field.name) for row in rows] for field in fields(FailedRow)}
    return pa.RecordBatch.from_arrays([pa.array(columns[f.name], f.type) for f in FAILED_SCHEMA], schema=FAILED_SCHEMA)


def write_part(storage: Storage, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    with storage.open_staged(name) as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def list_parts(storage: Storage, shard: int) -> list[str]:
    """The full names of a shard's parts, encoded and failed, oldest attempt first."""
    folder = state_folder(shard)
    names = [entry.name for entry in storage.list(folder) if PART.fullmatch(entry.name)]
    return [f"{folder}/{name}" for name in sorted(names)]


def holds_failed(name: str) -> bool:
    return name.rsplit("/", 1)[-1].startswith(("failed-", BASE_FAILED))


def open_part(storage: Storage, name: str, schema: pa.Schema, folder: Path) -> Part | None:
    """None where the part can't be used: damaged on the disk, or of another schema. Its rows are then done again."""
    try:
        path = storage.local_copy(name, folder)
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        if not reader.schema.equals(schema):
            return None
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        for batch in batches:
            batch.validate()
        return Part(name, [batch for batch in batches if batch.num_rows])
    except (pa.ArrowException, FileNotFoundError, OSError):
        return None
