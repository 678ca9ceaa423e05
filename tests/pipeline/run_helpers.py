"""Small runs for the tests of the run directory: rows made from their number, so that losses and doubles show."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.records import EncodedRow, FailedRow, Row, Shard, SourceFile
from pipeline.run_dir import RunDir
from pipeline.storage import Storage
from pipeline.writer import ShardWriter, output_schema

KEPT = pa.schema([("text", pa.string())])
SCHEMA = output_schema(KEPT, metadata={"num_codebooks": 2, "fingerprint": "f"})
MANIFEST: dict[str, Any] = {
    "fingerprint": "f",
    "facts": {"model": {"num_codebooks": 2}},
    "job": {"model": {"weights": "random:0"}},
}


def frames_of(row: int) -> int:
    return row % 7 + 1


def codes_of(shard: int, row: int, channel: int | None = None) -> np.ndarray:
    rng = np.random.default_rng([shard, row, channel or 0])
    return rng.integers(0, 2048, (2, frames_of(row)), np.uint16)


def encoded(shard: int, row: int, channel: int | None = None) -> EncodedRow:
    kept = pa.RecordBatch.from_pylist([{"text": f"text {row}"}], KEPT)
    source = Row(shard, row, f"{shard}/{row}", None, kept)
    return EncodedRow(source, channel, codes_of(shard, row, channel), frames_of(row) * 0.08, 16_000, 2)


def failed(shard: int, row: int, kind: str = "unreadable") -> FailedRow:
    return FailedRow(shard, row, f"{shard}/{row}", "decode", kind, "no sound in it")


def skipped(shard: int, row: int) -> FailedRow:
    return FailedRow(shard, row, f"{shard}/{row}", "filter", "too_short", "shorter than audio.min_seconds")


def make_run(path: Path | str, num_shards: int = 2, manifest: dict[str, Any] = MANIFEST, **options: Any) -> RunDir:
    shards = [
        Shard(index, "train", (SourceFile(f"/in/{index}.wav", 10, "1"),), num_rows=6) for index in range(num_shards)
    ]
    return RunDir.create(str(path), manifest=manifest, shards=shards, schema=SCHEMA, **options)


def writer_of(run: RunDir, shard: int, attempt: int = 1, **options: Any) -> ShardWriter:
    settings = {"checkpoint_seconds": 1e9, **options}
    return ShardWriter(run.storage, run.shards()[shard], run.schema(), attempt=attempt, **settings)


def write_rows(writer: ShardWriter, shard: int, rows: str) -> None:
    """File a row for each letter, by its place: e encoded, f failed, s skipped. Rows that are done stay as they are."""
    for row, letter in enumerate(rows):
        if row in writer.done:
            continue
        if letter == "e":
            writer.add([encoded(shard, row)])
        else:
            writer.fail(failed(shard, row) if letter == "f" else skipped(shard, row))


def do_shard(run: RunDir, lock: Any, shard: int, rows: str, attempt: int = 1, **options: Any) -> None:
    writer = writer_of(run, shard, attempt, **options)
    write_rows(writer, shard, rows)
    run.publish(writer.finish(len(rows)), run.shards()[shard], lock)


def finish_run(run: RunDir, rows: str, before: Callable[[Any], None] = lambda lock: None) -> None:
    """Do every shard that isn't done, as a driver would."""
    with run.locked() as lock:
        before(lock)
        for shard in run.pending()[0]:
            do_shard(run, lock, shard.index, rows, run.next_attempt())
        run.finish()


def rows_of(storage: Storage, name: str, folder: Path) -> list[dict[str, Any]]:
    return pq.read_table(storage.local_copy(name, folder)).to_pylist()


def check_shard(run: RunDir, shard: int, rows: str, folder: Path) -> None:
    """Assert that a published shard holds exactly the given rows, each once, in order, with its codes."""
    marker = run.markers()[shard]
    table = {kind: [] for kind in ("data", "errors", "skipped")}
    for kind in table:
        file = marker.file(kind)
        if file is not None:
            table[kind] = rows_of(run.storage, file.path, folder)
    assert [row["row"] for row in table["data"]] == [i for i, letter in enumerate(rows) if letter == "e"]
    assert [row["row"] for row in table["errors"]] == [i for i, letter in enumerate(rows) if letter == "f"]
    assert [row["row"] for row in table["skipped"]] == [i for i, letter in enumerate(rows) if letter == "s"]
    for row in table["data"]:
        assert row["codes"] == codes_of(shard, row["row"]).tolist()
        assert (row["key"], row["text"]) == (f"{shard}/{row['row']}", f"text {row['row']}")
    counts = (marker.encoded, marker.failed, marker.skipped)
    assert counts == tuple(rows.count(letter) for letter in "efs")
