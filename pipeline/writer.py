"""The writer of one shard: rows as they finish go into parts, and at the end into staged Parquet files.

It never touches a final name: `RunDir.publish` does, on the driver's side. A writer belongs to one thread.
"""

import contextlib
import secrets
import shutil
import tempfile
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import RunDirError
from pipeline.local_storage import LocalStorage
from pipeline.marker import Marker, marker_name
from pipeline.merge import Order, write_parquet
from pipeline.parts import (
    BASE,
    BASE_FAILED,
    FAILED_SCHEMA,
    Part,
    encoded_batch,
    failed_batch,
    holds_failed,
    list_parts,
    open_part,
    part_name,
    state_folder,
    write_part,
)
from pipeline.records import EncodedRow, FailedRow, Shard, ShardResult, StagedFile
from pipeline.schema import output_schema, run_facts, shard_file
from pipeline.storage import Storage

__all__ = ["ShardWriter", "output_schema"]

MAX_BUFFERED_BYTES = 64 << 20
COPY_ROWS = 1024  # rows copied at a time from a published file


class ShardWriter:
    """Files the rows of one shard, in any order, and finishes them into `data/`, `errors/` and `skipped/` files.

    `done` holds the source rows that need not be done again: those in the parts of earlier attempts. With
    `retry_failed` and a published shard these are the rows that its files hold as encoded or skipped, so that only the
    failed ones are tried.

    Every method raises RunDirError where the storage can't be written to; what was buffered stays.
    """

    def __init__(
        self,
        storage: Storage,
        shard: Shard,
        schema: pa.Schema,
        *,
        attempt: int,
        checkpoint_seconds: float,
        retry_failed: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._storage, self._shard, self._schema, self._attempt = storage, shard, schema, attempt
        self._checkpoint_seconds, self._clock = checkpoint_seconds, clock
        self._started = self._saved = clock()
        self._num_codebooks: int | None = run_facts(schema).get("num_codebooks")
        self._encoded: list[EncodedRow] = []
        self._failed: list[FailedRow] = []
        self._buffered = 0
        self._number = 0
        self._folder = Path()  # for copies of what isn't local
        if not isinstance(storage, LocalStorage):
            self._folder = Path(tempfile.mkdtemp(prefix="mimi-jobs-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        if retry_failed:
            self._keep_published()
        self._names: list[str] = []
        self.done: set[int] = set()
        for name in list_parts(storage, shard.index):
            part = self._open(name)
            if part is not None:
                self._names.append(name)
                self.done.update(part.column("row").tolist())

    def add(self, rows: list[EncodedRow]) -> None:
        """File the codes of one source row: a row for each of its channels, all together."""
        for encoded in rows:
            assert encoded.row.shard == self._shard.index and encoded.row.row == rows[0].row.row
            books = encoded.codes.shape[0]
            assert self._num_codebooks in (None, books), f"{books} codebooks, not {self._num_codebooks}"
            self._buffered += encoded.codes.nbytes + encoded.row.kept.nbytes
        self._encoded.extend(rows)
        self._filed(rows[0].row.row)

    def fail(self, row: FailedRow) -> None:
        """File a row that has no codes. With stage `filter` it is one that was skipped, not one that failed."""
        assert row.shard == self._shard.index
        self._buffered += len(row.message) + len(row.key)
        self._failed.append(row)
        self._filed(row.row)

    def tick(self) -> None:
        """Save what is buffered if `checkpoint_seconds` have passed. To be called while no row finishes."""
        if self._clock() - self._saved >= self._checkpoint_seconds:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Save what is buffered: it survives whatever happens to this process."""
        if self._encoded:
            self._save("part", self._schema, encoded_batch(self._encoded, self._schema))
            self._encoded = []
        if self._failed:
            self._save("failed", FAILED_SCHEMA, failed_batch(self._failed))
            self._failed = []
        self._buffered = 0
        self._saved = self._clock()

    def finish(self, rows_read: int) -> ShardResult:
        """Merge all parts into staged files. `rows_read` is the number of source rows that the shard yielded.

        A data file is staged even if no row was encoded, so that a run can always be loaded. AssertionError where
        encoded, failed and skipped rows don't add up to `rows_read`.
        """
        self.checkpoint()
        parts = [self._reopen(name) for name in self._names]
        encoded = Order([part for part in parts if not holds_failed(part.name)])
        others = Order([part for part in parts if holds_failed(part.name)], leave_out=encoded.row)
        failed, skipped = _split_by_stage(others)
        sums = _Sums()
        files = [self._stage("data", self._schema, sums.over(encoded.tables()))]
        for folder, table in (("errors", failed), ("skipped", skipped)):
            if table.num_rows:
                files.append(self._stage(folder, FAILED_SCHEMA, iter([table])))
        result = ShardResult(
            shard=self._shard.index,
            attempt=self._attempt,
            rows_read=rows_read,
            encoded=sums.rows,
            failed=failed.num_rows,
            skipped=skipped.num_rows,
            clips=len(encoded),
            frames=sums.frames,
            audio_seconds=sums.seconds,
            files=tuple(files),
            failures=dict(Counter(failed.column("kind").to_pylist()).most_common()),
            seconds=self._clock() - self._started,
        )
        return result

    def _filed(self, row: int) -> None:
        self.done.add(row)
        if self._buffered >= MAX_BUFFERED_BYTES:
            self.checkpoint()
        else:
            self.tick()

    def _save(self, kind: str, schema: pa.Schema, batch: pa.RecordBatch) -> None:
        name = part_name(self._shard.index, kind, self._attempt, self._number)
        write_part(self._storage, name, schema, [batch])
        self._number += 1
        self._names.append(name)

    def _open(self, name: str) -> Part | None:
        schema = FAILED_SCHEMA if holds_failed(name) else self._schema
        return open_part(self._storage, name, schema, self._folder)

    def _reopen(self, name: str) -> Part:
        part = self._open(name)
        if part is None:
            where = self._storage.join(name)
            raise RunDirError(f"{where}: was damaged or taken away while the shard was encoded; run `mimi-jobs resume`")
        return part

    def _stage(self, folder: str, schema: pa.Schema, tables: Iterator[pa.Table]) -> StagedFile:
        unique = f"{folder}-{self._attempt:04d}-{secrets.token_hex(4)}.parquet"
        staged = f"{state_folder(self._shard.index)}/{unique}"
        with self._storage.open_staged(staged) as sink:
            write_parquet(sink, schema, tables)
        final = f"{folder}/{shard_file(self._shard, run_facts(self._schema)['num_shards'])}"
        return StagedFile(staged, final, sink.num_bytes, sink.sha256())

    def _keep_published(self) -> None:
        """Put what the shard's published files hold, but for the failed rows, into parts; once, whatever the attempt.

        Where there's nothing published, or not what the marker says, nothing is kept and every row is done again.
        """
        folder = state_folder(self._shard.index)
        if self._storage.exists(f"{folder}/{BASE}"):
            return
        with contextlib.suppress(FileNotFoundError, ValueError):  # no marker, or nothing that is one, or bad Parquet
            marker = Marker.from_json(self._storage.read_bytes(marker_name(self._shard.index)))
            for kind, name, schema in (("skipped", BASE_FAILED, FAILED_SCHEMA), ("data", BASE, self._schema)):
                file = marker.file(kind)
                if file is not None and self._storage.size(file.path) == file.num_bytes:
                    write_part(self._storage, f"{folder}/{name}", schema, self._published(file.path, schema))

    def _published(self, name: str, schema: pa.Schema) -> Iterable[pa.RecordBatch]:
        path = self._storage.local_copy(name, self._folder)
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(COPY_ROWS):
                yield from pa.Table.from_batches([batch]).cast(schema).to_batches()


class _Sums:
    """Counts over the encoded rows as they pass."""

    def __init__(self) -> None:
        self.rows, self.frames, self.seconds = 0, 0, 0.0
        self._last = -1

    def over(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        for table in tables:
            rows = table.column("row").to_numpy()
            new = np.diff(rows, prepend=self._last) != 0  # a row of several channels is one row
            self.rows += int(new.sum())
            self.frames += int(table.column("num_frames").to_numpy().sum(dtype=np.int64))
            self.seconds += float(table.column("duration").to_numpy()[new].sum())
            self._last = int(rows[-1])
            yield table


def _split_by_stage(order: Order) -> tuple[pa.Table, pa.Table]:
    """The failed and the skipped rows: without codes they are small enough to hold."""
    table = pa.concat_tables([FAILED_SCHEMA.empty_table(), *order.tables()])
    return table.filter(pc.field("stage") != "filter"), table.filter(pc.field("stage") == "filter")
