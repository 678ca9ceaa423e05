"""Datasets, job files and runs for the tests of `jobs`, made on the spot; nothing here encodes or starts Ray."""

import io
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile
import yaml

from jobs.submission import check, create_run
from pipeline.records import FRAME_SAMPLES, SAMPLE_RATE, EncodedRow, FailedRow, Row, Shard
from pipeline.run_dir import RunDir
from pipeline.storage import Storage
from pipeline.writer import ShardWriter

AUDIO_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def wav(seconds: float = 0.2, rate: int = 16_000, channels: int = 1) -> bytes:
    samples = np.random.default_rng(0).uniform(-0.1, 0.1, (round(seconds * rate), channels))
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format="WAV")
    return buffer.getvalue()


def write_dataset(folder: Path, shards: Sequence[Sequence[bytes | None]]) -> Path:
    """A parquet file a shard, with the columns id, audio, text and number."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, sounds in enumerate(shards):
        names = [f"{index}-{row}" for row in range(len(sounds))]
        table = pa.table(
            {
                "id": pa.array(names, pa.string()),
                "audio": pa.array([{"bytes": data, "path": None} for data in sounds], AUDIO_TYPE),
                "text": pa.array([f"text of {name}" for name in names], pa.string()),
                "number": pa.array(range(len(sounds)), pa.int64()),
            }
        )
        pq.write_table(table, folder / f"train-{index:05d}-of-{len(shards):05d}.parquet")
    return folder


def write_job(folder: Path, dataset: Path, **sections: dict[str, Any]) -> str:
    """A job file that would be accepted, with changes: `model={"kv_repeat": 2}`."""
    job: dict[str, dict[str, Any]] = {
        "input": {"path": str(dataset), "id_column": "id"},
        "model": {"weights": "random:0"},
        "output": {"path": str(folder / "out")},
    }
    for name, values in sections.items():
        job.setdefault(name, {}).update(values)
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return str(path)


def write_checkpoint_header(path: Path, shapes: dict[str, tuple[int, ...]]) -> str:
    """A safetensors file that has a header and no tensors: all that a check at submission looks at."""
    entries = {name: {"dtype": "F32", "shape": list(shape), "data_offsets": [0, 0]} for name, shape in shapes.items()}
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(64))
    return str(path)


def make_run(job_file: str, *overrides: str) -> RunDir:
    """The run directory of a job, as `submit` makes it before anything is encoded."""
    return create_run(check(job_file, overrides))


def encoded_row(shard: int, row: int, codes: np.ndarray, kept: pa.RecordBatch, key: str | None = None) -> EncodedRow:
    audio_seconds = codes.shape[1] * FRAME_SAMPLES / SAMPLE_RATE
    return EncodedRow(Row(shard, row, key or f"{shard}-{row}", None, kept), None, codes, audio_seconds, 16_000, 1)


def publish(run: RunDir, shard: Shard, codes: Sequence[np.ndarray], failed: Sequence[FailedRow] = ()) -> None:
    """Commit a shard with these codes; its failed rows come after them."""
    schema = run.schema()
    kept_fields = [field for field in schema if field.name in ("id", "text", "number")]
    writer = ShardWriter(run.storage, shard, schema, attempt=run.next_attempt(), checkpoint_seconds=60)
    for row, each in enumerate(codes):
        values = {"id": f"{shard.index}-{row}", "text": "words", "number": row}
        kept = pa.RecordBatch.from_pylist([values], pa.schema(kept_fields))
        writer.add([encoded_row(shard.index, row, each, kept)])
    for row in failed:
        writer.fail(row)
    result = writer.finish(len(codes) + len(failed))
    with run.locked() as lock:
        run.publish(result, shard, lock)


def random_codes(frames: int, k: int = 8, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2048, (k, frames), np.uint16)


def storage_of(path: Path) -> Storage:
    return Storage.at(str(path))
