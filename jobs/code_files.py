"""Codes read from parquet in columns, ours or another tool's: found, checked to be [K][T], handed on in flat batches.

What the numbers mean is left to `inspection.py`. A file that isn't right is a `CodeFileError` of one line.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

CODE_COLUMNS = ("codes", "audio_codes")
CODEBOOK_SIZE = 2048
MAX_CODEBOOKS = 32
BATCH_CODES = 2 << 20  # codes of a batch: its arrays take some 25 MB


class CodeFileError(ValueError):
    """A file isn't parquet, or holds no codes in [K][T]. The text says what is wrong, without the file's name."""


@dataclass(frozen=True, slots=True)
class CodeBatch:
    """Some rows of one file.

    codes: uint16, flat: row by row, within a row codebook by codebook, [K][T] each.
    frames: int64 [rows], T of each row.
    others: the other columns asked for, those that the file has.
    """

    codes: np.ndarray
    frames: np.ndarray
    num_codebooks: int
    others: pa.RecordBatch


@dataclass(slots=True)
class CodeFile:
    """An open parquet file with a column of codes."""

    parquet: pq.ParquetFile
    column: str
    num_bytes: int
    handle: Any  # the file beneath

    @classmethod
    def open(cls, path: str, fs: "AbstractFileSystem") -> "CodeFile":
        """Open and look at the schema; raises `CodeFileError`."""
        try:
            handle = fs.open(path, "rb")
        except FileNotFoundError:
            raise CodeFileError("no such file") from None
        except (OSError, ValueError) as error:
            raise CodeFileError(_why_unreadable(error)) from None
        try:
            return cls._of(handle, int(fs.size(path) or 0))
        except BaseException:
            handle.close()
            raise

    @classmethod
    def _of(cls, handle: Any, num_bytes: int) -> "CodeFile":
        try:
            parquet = pq.ParquetFile(handle, pre_buffer=True)
            names = parquet.schema_arrow.names
        except (pa.ArrowException, OSError, ValueError) as error:
            raise CodeFileError(_why_unreadable(error)) from None
        column = next((name for name in CODE_COLUMNS if name in names), None)
        if column is None:
            raise CodeFileError(
                f"no column named {' or '.join(CODE_COLUMNS)}, it has {', '.join(names[:20]) or 'none'}"
            )
        _check_type(column, parquet.schema_arrow.field(column).type)
        return cls(parquet, column, num_bytes, handle)

    def __enter__(self) -> "CodeFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.parquet.close()
        self.handle.close()

    @property
    def metadata(self) -> dict[bytes, bytes]:
        return dict(self.parquet.schema_arrow.metadata or {})

    def batches(self, others: Sequence[str] = ()) -> Iterator[CodeBatch]:
        """All rows, in order; raises `CodeFileError` where the codes aren't [K][T] with one K, or can't be read."""
        names = [self.column, *(name for name in others if name in self.parquet.schema_arrow.names)]
        shape = _Shape()
        try:
            for batch in self.parquet.iter_batches(batch_size=self._batch_rows(), columns=names):
                codes, frames, k = shape.checked(self.column, batch.column(self.column))
                rest = batch.select([name for name in batch.schema.names if name != self.column])
                yield CodeBatch(codes, frames, k, rest)
        except (pa.ArrowException, OSError) as error:
            raise CodeFileError(_why_unreadable(error)) from None
        shape.finish(self.column)

    def code_bytes(self) -> int:
        """Bytes that the codes alone take in the file."""
        return sum(chunk.total_compressed_size for chunk in self._chunks())

    def _batch_rows(self) -> int:
        """Rows whose codes fill a batch, by the file's own counts."""
        values = sum(chunk.num_values for chunk in self._chunks())
        return max(1, min(65536, BATCH_CODES * self.parquet.metadata.num_rows // max(values, 1)))

    def _chunks(self) -> Iterator[Any]:
        """What the file says of its codes, a row group at a time."""
        meta = self.parquet.metadata
        leaf = next(i for i in range(meta.num_columns) if meta.schema.column(i).path.split(".")[0] == self.column)
        return (meta.row_group(group).column(leaf) for group in range(meta.num_row_groups))


def _why_unreadable(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "magic bytes" in text or "too small" in text or "smaller than" in text or "size is 0 bytes" in text:
        return "not a parquet file, or cut short"
    return f"can't be read as parquet ({text[:200]})"


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _storage(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _check_type(column: str, kind: pa.DataType) -> None:
    outer = _storage(kind)
    if _is_list(outer) and _is_list(outer.value_type) and pa.types.is_integer(outer.value_type.value_type):
        return
    raise CodeFileError(f"column {column} holds {kind}, codes are lists of lists of whole numbers, [K][T]")


def _lengths_and_values(array: Any) -> tuple[np.ndarray, Any]:
    """Length of each list, and what they hold one after another."""
    if pa.types.is_fixed_size_list(array.type):
        return np.full(len(array), array.type.list_size, np.int64), array.flatten()
    return np.diff(array.offsets.to_numpy()).astype(np.int64), array.flatten()


class _Shape:
    """Watches over the batches of a file that every row is [K][T] with the same K."""

    def __init__(self) -> None:
        self.num_codebooks: int | None = None
        self._row = 0
        self._inner: set[int] = set()  # lengths of inner lists seen, no more than two
        self._odd: str | None = None  # what is wrong, while it may still turn out to be [T][K]

    def checked(self, column: str, array: Any) -> tuple[np.ndarray, np.ndarray, int]:
        """codes, frames and K of a batch; K is 0 while the file may be in [T][K]."""
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        if array.null_count:
            row = self._row + int(array.is_null().index(True).as_py())
            raise CodeFileError(f"row {row} has no {column} (null)")
        outer, lists = _lengths_and_values(array)
        if lists.null_count:
            raise CodeFileError(f"a codebook of {column} is null")
        inner, values = _lengths_and_values(lists)
        if values.null_count:
            raise CodeFileError(f"a code in {column} is null")
        self._look(outer, inner)
        self._row += len(outer)
        if self._odd or not len(outer):
            return np.empty(0, np.uint16), np.empty(0, np.int64), self.num_codebooks or 0
        k = self.num_codebooks or 0
        return _as_codes(column, values), inner.reshape(-1, k)[:, 0] if k else outer, k

    def _look(self, outer: np.ndarray, inner: np.ndarray) -> None:
        if not len(outer):
            return
        if len(self._inner) < 2:
            self._inner.update(np.unique(inner)[:2].tolist())
        if self._odd:
            return
        k = self.num_codebooks = int(outer[0]) if self.num_codebooks is None else self.num_codebooks
        wrong = np.flatnonzero(outer != k)
        if len(wrong):
            self._odd = f"row {self._row + wrong[0]} has {outer[wrong[0]]} codebooks and the rows before it {k}"
        elif not 1 <= k <= MAX_CODEBOOKS:
            self._odd = f"its rows have {k} codebooks, Mimi has 1 to {MAX_CODEBOOKS}"
        else:
            table = inner.reshape(-1, k)
            ragged = np.flatnonzero((table != table[:, :1]).any(axis=1))
            if len(ragged):
                lengths = ", ".join(str(n) for n in np.unique(table[ragged[0]])[:4])
                self._inner.update((-1, -2))  # no longer one length: it can't be [T][K]
                self._odd = f"row {self._row + ragged[0]} is ragged, its codebooks have {lengths} frames"

    def finish(self, column: str) -> None:
        """Raise for what was held back until the whole file had been seen."""
        if not self._odd:
            return
        if len(self._inner) == 1 and 1 <= (k := next(iter(self._inner))) <= MAX_CODEBOOKS:
            raise CodeFileError(f"{column} is [T][K] (lists of {k} codes, a list a frame), transpose it to [K][T]")
        raise CodeFileError(f"{column} isn't [K][T]: {self._odd}")


def _as_codes(column: str, values: Any) -> np.ndarray:
    numbers = values.to_numpy(zero_copy_only=False)
    if len(numbers):
        low, high = int(numbers.min()), int(numbers.max())
        if low < 0 or high >= CODEBOOK_SIZE:
            raise CodeFileError(f"{column} holds {low if low < 0 else high}, codes are 0 to {CODEBOOK_SIZE - 1}")
    return numbers.astype(np.uint16, copy=False)
