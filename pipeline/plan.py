"""The plan of a run as one small Parquet file: every shard, with its files. Kept as columns, handed out as `Shard`s."""

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.records import Shard, SourceFile
from pipeline.storage import Sink

FILE = pa.struct([("url", pa.string()), ("size", pa.int64()), ("version", pa.string())])
SPAN = pa.struct([("start", pa.int64()), ("stop", pa.int64())])
SCHEMA = pa.schema(
    [
        pa.field("index", pa.int32(), nullable=False),
        pa.field("split", pa.dictionary(pa.int32(), pa.string())),
        pa.field("files", pa.list_(FILE)),
        pa.field("row_groups", SPAN),
        pa.field("rows", SPAN),
        pa.field("num_rows", pa.int64()),
        pa.field("num_bytes", pa.int64()),
    ]
)
BATCH = 1000  # shards turned into Python objects at a time


class Plan(Sequence[Shard]):
    """The shards of a run, in their order. Costs what its columns cost, not an object for each shard."""

    def __init__(self, table: pa.Table):
        self.table = table

    @classmethod
    def of(cls, shards: Iterable[Shard]) -> "Plan":
        """Shards numbered from 0 as they come; AssertionError if they aren't."""
        batches, pending = [], []
        for place, shard in enumerate(shards):
            assert shard.index == place, f"shard {shard.index} is planned at place {place}"
            pending.append(_to_dict(shard))
            if len(pending) == BATCH:
                batches.append(pa.RecordBatch.from_pylist(pending, PLAIN))
                pending = []
        if pending:
            batches.append(pa.RecordBatch.from_pylist(pending, PLAIN))
        return cls(pa.Table.from_batches(batches, PLAIN).cast(SCHEMA).unify_dictionaries())

    @classmethod
    def read(cls, data: bytes) -> "Plan":
        """From the content of plan.parquet; pyarrow.ArrowException where it's damaged."""
        return cls(pq.read_table(pa.BufferReader(data), schema=SCHEMA))

    def write(self, sink: Sink) -> None:
        pq.write_table(self.table, sink, compression="zstd")

    def select(self, indexes: Sequence[int]) -> "Plan":
        """The plan of some of the shards, in the order given."""
        return Plan(self.table.take(pa.array(indexes, pa.int64())))

    def splits(self) -> list[str]:
        """The names of the splits, each once."""
        return sorted(set(self.table.column("split").cast(pa.string()).unique().to_pylist()))

    def __len__(self) -> int:
        return self.table.num_rows

    def __iter__(self) -> Iterator[Shard]:
        for batch in self.table.to_batches(BATCH):
            for row in batch.to_pylist():
                yield _from_dict(row)

    @overload
    def __getitem__(self, index: int) -> Shard: ...
    @overload
    def __getitem__(self, index: slice) -> "Plan": ...
    def __getitem__(self, index: int | slice) -> "Shard | Plan":
        if isinstance(index, slice):
            return self.select(range(*index.indices(len(self))))
        if not -len(self) <= index < len(self):
            raise IndexError(f"shard {index} of {len(self)}")
        return _from_dict(self.table.slice(index % len(self), 1).to_pylist()[0])


PLAIN = pa.schema([pa.field("split", pa.string()) if field.name == "split" else field for field in SCHEMA])


def _to_dict(shard: Shard) -> dict:
    return {
        "index": shard.index,
        "split": shard.split,
        "files": [{"url": file.url, "size": file.size, "version": file.version} for file in shard.files],
        "row_groups": shard.row_groups and {"start": shard.row_groups[0], "stop": shard.row_groups[1]},
        "rows": shard.rows and {"start": shard.rows[0], "stop": shard.rows[1]},
        "num_rows": shard.num_rows,
        "num_bytes": shard.num_bytes,
    }


def _from_dict(row: dict) -> Shard:
    groups, rows = row["row_groups"], row["rows"]
    return Shard(
        index=row["index"],
        split=row["split"],
        files=tuple(SourceFile(**file) for file in row["files"]),
        row_groups=(groups["start"], groups["stop"]) if groups else None,
        rows=(rows["start"], rows["stop"]) if rows else None,
        num_rows=row["num_rows"],
        num_bytes=row["num_bytes"],
    )
