"""Codes read back from parquet, a row at a time: `read_codes`. Statistics over whole sets are left to `jobs`."""

import posixpath
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import RunDirError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

CODE_COLUMNS = ("codes", "audio_codes")
CODEBOOK_SIZE = 2048
MAX_CODEBOOKS = 32
BATCH_ROWS = 64
CODES = pa.list_(pa.list_(pa.uint16()))


class StoredCodes(NamedTuple):
    """A row of a parquet file of codes.

    key: None where the file has no such column. codes: uint16 [K, T], the caller's own. columns: those asked for.
    """

    key: str | None
    codes: np.ndarray
    columns: dict[str, Any]


def read_codes(
    path: str,
    columns: Sequence[str] | None = None,
    rows: "slice | Collection[int] | None" = None,
    keys: Collection[str] | None = None,
    storage_options: dict[str, Any] | None = None,
) -> Iterator[StoredCodes]:
    """The rows of a run, a folder of parquet files or one file, local or an fsspec URL, in order.

    columns: what else to read of each row; None for nothing, an empty dictionary then comes with each.
    rows: which rows, counted from 0 over all files; a slice, or positions in any order (rows come in the file's).
    keys: only rows with one of these keys. What isn't selected isn't decoded.

    Only a row group is in memory at a time, and less of it where it's large. Of a run, the finished shards are read.
    Raises RunDirError, one line that names the file, where nothing is there or a file holds no codes in [K][T];
    ValueError for a negative row.
    """
    wanted = _positions(rows)
    place = 0
    for fs, name, shown in _files(path, storage_options):
        if wanted is not None and place >= wanted.stop:
            return
        try:
            with fs.open(name, "rb") as opened:
                file = _parquet(opened)
                yield from _rows_of(file, columns or (), wanted, keys, place)
                place += file.metadata.num_rows
        except (pa.ArrowException, OSError, ValueError) as error:
            why = " ".join(str(error).split())[:300] or type(error).__name__
            raise RunDirError(f"{shown}: can't be read as codes: {why}") from error


class _Positions(NamedTuple):
    """Rows wanted: `among` is all of them, `stop` is beyond the last."""

    among: "range | np.ndarray"
    stop: float

    def within(self, start: int, stop: int) -> np.ndarray:
        """Those in [start, stop), counted from start."""
        if isinstance(self.among, range):
            first = self.among.start + max(0, -(-(start - self.among.start) // self.among.step)) * self.among.step
            return np.arange(first, min(stop, self.among.stop), self.among.step, dtype=np.int64) - start
        low, high = np.searchsorted(self.among, (start, stop))
        return self.among[low:high] - start


def _positions(rows: "slice | Collection[int] | None") -> _Positions | None:
    if rows is None:
        return None
    if isinstance(rows, slice):
        start, stop, step = rows.start or 0, rows.stop, rows.step or 1
        if start < 0 or step < 1 or (stop is not None and stop < 0):
            raise ValueError(f"rows: {rows} counts from the end, which isn't known; count from 0")
        end = stop if stop is not None else np.iinfo(np.int64).max
        return _Positions(range(start, end, step), end)
    among = np.unique(np.fromiter(rows, np.int64, len(rows)))
    if len(among) and among[0] < 0:
        raise ValueError(f"rows: {among[0]} counts from the end, which isn't known; count from 0")
    return _Positions(among, int(among[-1]) + 1 if len(among) else 0)


def _files(path: str, storage_options: dict[str, Any] | None) -> "Iterator[tuple[AbstractFileSystem, str, str]]":
    """filesystem, name and the name to show of each file; RunDirError where there is none."""
    import fsspec

    from pipeline.run_dir import MANIFEST, RunDir

    try:
        fs, root = fsspec.core.url_to_fs(path, **(storage_options or {}))
        root = root.rstrip("/") or root
        if fs.isfile(root):
            names = [root]
        elif fs.isfile(f"{root}/{MANIFEST}"):
            markers = RunDir.open(path, storage_options).markers()
            found = [marker.file("data") for _, marker in sorted(markers.items())]
            names = [f"{root}/{file.path}" for file in found if file is not None]
        else:
            names = [name for name in sorted(fs.find(root)) if _is_shown(posixpath.relpath(name, root))]
            if not names:
                raise RunDirError(f"{path}: no parquet file there, give a run, a folder or a file of codes")
    except (OSError, ValueError, ImportError) as error:
        raise RunDirError(f"{path}: can't be looked into ({' '.join(str(error).split())[:300]})") from error
    for name in names:
        beneath = posixpath.relpath(name, root)
        yield fs, name, path if beneath == "." else f"{path.rstrip('/')}/{beneath}"


def _is_shown(name: str) -> bool:
    return name.endswith(".parquet") and not any(part.startswith(("_", ".")) for part in name.split("/"))


def _parquet(opened: Any) -> pq.ParquetFile:
    file = pq.ParquetFile(opened, pre_buffer=True)
    if _code_column(file) is None:
        have = ", ".join(file.schema_arrow.names[:20]) or "none"
        raise ValueError(f"no column named {' or '.join(CODE_COLUMNS)}, it has {have}")
    return file


def _code_column(file: pq.ParquetFile) -> str | None:
    return next((name for name in CODE_COLUMNS if name in file.schema_arrow.names), None)


def _rows_of(
    file: pq.ParquetFile,
    columns: Sequence[str],
    wanted: _Positions | None,
    keys: Collection[str] | None,
    place: int,
) -> Iterator[StoredCodes]:
    names = file.schema_arrow.names
    missing = [name for name in columns if name not in names]
    if missing:
        raise ValueError(f"no column named {', '.join(missing)}, it has {', '.join(names[:20])}")
    if keys is not None and "key" not in names:
        raise ValueError("no column named key to look for keys in")
    column = _code_column(file)
    assert column is not None
    num_codebooks = 0  # of the rows so far
    read = list(dict.fromkeys([column, *(["key"] if "key" in names else []), *columns]))
    for group in range(file.num_row_groups):
        count = file.metadata.row_group(group).num_rows
        chosen = _chosen(file, group, count, wanted, keys, place)
        place += count
        if not len(chosen):
            continue
        start = 0
        for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=read):
            low, high = np.searchsorted(chosen, (start, start + batch.num_rows))
            if high > low:
                for clip in _unpacked(batch, chosen[low:high] - start, column, columns):
                    num_codebooks = num_codebooks or len(clip.codes)
                    if len(clip.codes) != num_codebooks:
                        found = f"{len(clip.codes)} lists in one row and {num_codebooks} in another"
                        raise ValueError(f"{column} has {found}: that's [T][K] or ragged, and must be [K][T]")
                    yield clip
            start += batch.num_rows
            if start > chosen[-1]:
                break


def _chosen(
    file: pq.ParquetFile,
    group: int,
    count: int,
    wanted: _Positions | None,
    keys: Collection[str] | None,
    place: int,
) -> np.ndarray:
    """int64: which rows of a row group are wanted."""
    chosen = np.arange(count) if wanted is None else wanted.within(place, place + count)
    if keys is None or not len(chosen):
        return chosen
    here = file.read_row_group(group, columns=["key"]).column(0).to_pylist()
    among = set(keys)
    return np.array([row for row in chosen if here[row] is not None and str(here[row]) in among], np.int64)


def _unpacked(batch: pa.RecordBatch, rows: np.ndarray, column: str, columns: Sequence[str]) -> Iterator[StoredCodes]:
    array: Any = batch.column(column)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    array = array.cast(CODES)  # whole numbers beyond 16 bits, and what isn't a list of lists, end here
    if array.null_count or array.values.null_count or array.values.values.null_count:
        raise ValueError(f"{column} has nulls")
    outer, inner = array.offsets.to_numpy(), array.values.offsets.to_numpy()
    values = array.values.values.to_numpy()
    has_key = "key" in batch.schema.names
    for row in rows.tolist():
        edges = inner[outer[row] : outer[row + 1] + 1]
        codes = values[edges[0] : edges[-1]]
        num_codebooks, lengths = len(edges) - 1, np.diff(edges)
        if not 1 <= num_codebooks <= MAX_CODEBOOKS:
            raise ValueError(f"{column} has {num_codebooks} codebooks, Mimi has 1 to {MAX_CODEBOOKS}; is it [T][K]?")
        if (lengths != lengths[0]).any():
            raise ValueError(f"{column} is ragged, its codebooks have {lengths.min()} to {lengths.max()} frames")
        if len(codes) and codes.max() >= CODEBOOK_SIZE:
            raise ValueError(f"{column} holds {codes.max()}, codes are 0 to {CODEBOOK_SIZE - 1}")
        others = {name: batch.column(name)[row].as_py() for name in columns}
        key = batch.column("key")[row].as_py() if has_key else None
        yield StoredCodes(None if key is None else str(key), codes.reshape(num_codebooks, -1).copy(), others)
