"""A shard's parts, in whatever order they were filed, to Parquet files in source order; memory is bounded.

How the codes are stored was measured (pyarrow 26, zstd level 3, bits a code), on codes drawn like trained ones: each
codebook a power law over shuffled indexes, 8 bits of entropy in the first to 10.5 in the last, clips of 1 to 30 s.


    codebooks   dictionary   byte-stream split   delta   plain
    8           11.07        11.55               12.39   14.40
    32          11.05        11.62               12.38   14.61
    8, groups of 50 clips
                11.52        12.50               12.27   14.48

Uniform codes give the same to 0.1 bit. Byte-stream split wins only where frequent codes have small indexes, which
training doesn't bring about. So: dictionary, and row groups as large as memory allows. Levels above 3 gain 0.01 bit.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.parts import Part
from pipeline.storage import Sink

ROW_GROUP_BYTES = 32 << 20  # of a row group in memory
PARQUET = {"compression": "zstd", "compression_level": 3, "use_dictionary": True, "write_page_index": True}


class Order:
    """Where the rows of some parts lie, in the order of (row, channel); each row from the first part that has it.

    part, batch, offset, size: int64 [num_rows], `size` in bytes and approximate.
    """

    def __init__(self, parts: Sequence[Part], leave_out: np.ndarray | None = None):
        self.parts = parts
        columns = [_places(number, part) for number, part in enumerate(parts)]
        places = np.concatenate(columns, axis=1) if columns else np.empty((6, 0), np.int64)
        row, channel, part = places[:3]
        keep = np.ones(row.size, bool) if leave_out is None else ~np.isin(row, leave_out)
        rows, which = np.unique(row, return_inverse=True)
        first = np.full(rows.size, np.iinfo(np.int64).max)
        np.minimum.at(first, which, part)
        keep &= part == first[which]
        order = np.lexsort((channel[keep], row[keep]))
        places = places[:, keep][:, order]
        if places.shape[1]:  # within one part too: a row and channel once
            again = (np.diff(places[0]) == 0) & (np.diff(places[1]) == 0)
            places = places[:, np.concatenate([[True], ~again])]
        self.row, self.channel, self.part, self.batch, self.offset, self.size = places

    def __len__(self) -> int:
        return self.row.size

    def tables(self, max_bytes: int = ROW_GROUP_BYTES) -> Iterator[pa.Table]:
        """The rows in order, in tables of at most `max_bytes` (or of one row that is larger)."""
        start = 0
        ends = np.cumsum(self.size)
        while start < len(self):
            before = ends[start - 1] if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + max_bytes, side="right")))
            yield self._gather(slice(start, stop))
            start = stop

    def _gather(self, span: slice) -> pa.Table:
        part, batch, offset = self.part[span], self.batch[span], self.offset[span]
        by_batch = np.lexsort((offset, batch, part))
        pieces, start = [], 0
        changes = (np.diff(part[by_batch]) != 0) | (np.diff(batch[by_batch]) != 0)
        for stop in [*(np.flatnonzero(changes) + 1), by_batch.size]:
            chosen = by_batch[start:stop]
            source = self.parts[part[chosen[0]]].batches[batch[chosen[0]]]
            pieces.append(source.take(pa.array(offset[chosen])))
            start = stop
        back = np.empty(by_batch.size, np.int64)
        back[by_batch] = np.arange(by_batch.size)
        return pa.Table.from_batches(pieces).combine_chunks().take(pa.array(back))


def _places(number: int, part: Part) -> np.ndarray:
    """int64 [6, num_rows]: row, channel, part, batch, offset and bytes of each row of a part."""
    rows = part.column("row").astype(np.int64)
    has_channel = bool(part.batches) and "channel" in part.batches[0].schema.names
    channels = part.column("channel").astype(np.int64) if has_channel else np.full(rows.size, -1)
    counts = [batch.num_rows for batch in part.batches]
    batches = np.repeat(np.arange(len(counts)), counts)
    offsets = np.concatenate([np.arange(count) for count in counts]) if counts else np.empty(0, np.int64)
    sizes = [_row_bytes(batch) for batch in part.batches]
    size = np.concatenate(sizes) if sizes else np.empty(0, np.int64)
    return np.stack([rows, channels, np.full(rows.size, number), batches, offsets, size]).astype(np.int64)


def _row_bytes(batch: pa.RecordBatch) -> np.ndarray:
    """Bytes of each row: the codes exactly, the other columns as their mean."""
    if "codes" not in batch.schema.names:
        return np.full(batch.num_rows, batch.nbytes // batch.num_rows + 1)
    codes = batch.column("codes")
    frames = batch.column("num_frames").to_numpy().astype(np.int64)
    books = np.diff(codes.offsets.to_numpy()).astype(np.int64)
    return frames * books * 2 + (batch.nbytes - codes.nbytes) // batch.num_rows + 1


def write_parquet(sink: Sink, schema: pa.Schema, tables: Iterator[pa.Table]) -> None:
    """One row group a table; a file of no rows is a whole file too."""
    with pq.ParquetWriter(sink, schema, **PARQUET) as writer:
        for table in tables:
            writer.write_table(table.replace_schema_metadata(schema.metadata), row_group_size=max(1, table.num_rows))
