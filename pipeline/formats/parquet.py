"""Parquet files, row group by row group.

Read with pyarrow and not through `datasets`, whose iteration takes a whole row group at a time (audio: hundreds of
megabytes), ends at a bad page, and raises on a file without rows. Here a bad page costs its row group's rest.
"""

import json
from collections.abc import Generator, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.columns import AUDIO_NAMES, Columns, Survey, checked
from pipeline.dataset_files import SourceStream, describe, in_threads, open_file
from pipeline.errors import SourceError
from pipeline.formats.pieces import Lost, Piece, Skipped, found_rows
from pipeline.places import Place
from pipeline.records import SourceFile

FILES_SURVEYED = 64  # footers read to compare columns; the rest are compared when they're read
BATCH_BYTES = 8 << 20  # aimed at, of what is read at once
BATCH_ROWS = 256
PAGE_BUFFER = 1 << 20  # column chunks are read through a buffer, not whole
SAMPLE_ROWS = 8
PATH_BYTES = 64  # a row whose column of sound takes no more has its sound elsewhere
ROWS_PER_BYTE = 8  # beyond this a footer is damaged: a null alone is a bit
FAILED_ROWS = 100_000  # of one damaged row group; more are told as one


def open_parquet(stream: SourceStream) -> pq.ParquetFile:
    """ValueError, OSError or ArrowException where the footer is damaged, be it only that it claims an absurd size."""
    size = stream.seek(0, 2)
    stream.seek(0)
    file = pq.ParquetFile(stream, buffer_size=PAGE_BUFFER, pre_buffer=False)
    rows = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
    if min(rows, default=0) < 0 or sum(rows) > ROWS_PER_BYTE * size:
        raise ValueError(f"its footer declares {sum(rows)} rows in {size} bytes")
    return file


def footer(url: str) -> tuple[pq.FileMetaData, pa.Schema] | str:
    """The file's metadata and columns, or what is wrong with it. SourceError where it can't be opened."""
    with open_file(url) as stream:
        try:
            file = open_parquet(stream)
            return file.metadata, checked(file.schema_arrow)
        except (pa.ArrowException, OSError, ValueError) as error:
            stream.check()
            return describe(error)


def spread(files: list[SourceFile], count: int) -> list[SourceFile]:
    """At most `count` of the files: the first, the last, and some evenly between."""
    if len(files) <= count:
        return files
    step = (len(files) - 1) / (count - 1)
    return [files[round(i * step)] for i in range(count)]


def survey(files: list[SourceFile]) -> Survey:
    """SourceError where none of the files looked at is parquet."""
    looked = spread(files, FILES_SURVEYED)
    footers = in_threads(footer, [file.url for file in looked])
    good = [(file.url, found) for file, found in zip(looked, footers, strict=True) if not isinstance(found, str)]
    if not good:
        raise SourceError(f"{looked[0].url}: isn't a parquet file that can be read: {footers[0]}")
    features: dict[str, Any] = {}
    for _, (_, schema) in good:
        features.update(features_of(schema))
    first = next((url for url, (meta, _) in good if meta.num_rows), None)
    return Survey(tuple((url, schema) for url, (_, schema) in good), features, _samples(first))


def features_of(schema: pa.Schema) -> dict[str, Any]:
    """The huggingface features that a schema's metadata declares, as JSON values by column."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return {}
    return features if isinstance(features, dict) else {}


def _samples(url: str | None) -> dict[str, list[str]]:
    if url is None:
        return {}
    with open_file(url) as stream:
        try:
            file = open_parquet(stream)
            names = [f.name for f in file.schema_arrow if f.name in AUDIO_NAMES and str(f.type).endswith("string")]
            if not names:
                return {}
            batch = next(file.iter_batches(SAMPLE_ROWS, columns=names), None)
        except (pa.ArrowException, OSError, ValueError):
            stream.check()
            return {}
    rows = batch.to_pylist() if batch is not None else []
    return {name: [row[name] for row in rows if row[name]] for name in names}


def holds_sound(file: SourceFile, column: str) -> bool:
    """Whether the file's audio lies in it, and not beside it under a path."""
    found = footer(file.url)
    if isinstance(found, str) or not found[0].num_rows:
        return True
    meta, schema = found
    if pa.types.is_string(schema.field(column).type) or pa.types.is_large_string(schema.field(column).type):
        return False
    group = max((meta.row_group(i) for i in range(meta.num_row_groups)), key=lambda group: group.num_rows)
    try:
        chunks = [group.column(i) for i in range(group.num_columns)]
        sizes = [chunk.total_uncompressed_size for chunk in chunks if _is_sound(chunk, column)]
    except UnicodeDecodeError:  # a damaged footer, which reading will tell of
        return True
    return sum(sizes) > PATH_BYTES * group.num_rows


def _is_sound(chunk: Any, column: str) -> bool:
    return chunk.path_in_schema in (column, f"{column}.bytes")


def count(file: SourceFile, at_most: int | None = None) -> int | None:
    """Rows of the file; None where it isn't parquet. `at_most` changes nothing: the footer knows."""
    found = footer(file.url)
    return None if isinstance(found, str) else found[0].num_rows


def groups(file: SourceFile) -> list[tuple[int, int]]:
    """(rows, bytes) of each row group; none where the file isn't parquet."""
    found = footer(file.url)
    if isinstance(found, str):
        return []
    meta = found[0]
    return [(meta.row_group(i).num_rows, _stored_bytes(meta.row_group(i))) for i in range(meta.num_row_groups)]


def _stored_bytes(group: Any) -> int:
    return sum(group.column(i).total_compressed_size for i in range(group.num_columns))


def read(
    file: SourceFile, columns: Columns, place: Place, skip: int, span: tuple[int, int] | None, options: dict[str, Any]
) -> Generator[Piece, None, None]:
    """The rows after the first `skip`, of the row groups [span[0], span[1]) alone where a span is given."""
    with open_file(file.url) as stream:
        try:
            reader = open_parquet(stream)
            meta = reader.metadata
            numbers = range(meta.num_row_groups)[slice(*span)] if span else range(meta.num_row_groups)
        except (pa.ArrowException, OSError, ValueError) as error:
            stream.check()
            yield Lost(1, f"{file.url} isn't a parquet file that can be read, its rows are lost: {describe(error)}")
            return
        wanted = _wanted(reader.schema_arrow, columns, file.url)
        for number in numbers:
            rows = meta.row_group(number).num_rows
            if skip >= rows:
                skip -= rows
                yield Skipped(rows)
                continue
            yield from _read_group(reader, stream, number, wanted, columns, place, skip)
            skip = 0


def _wanted(schema: pa.Schema, columns: Columns, url: str) -> list[str]:
    names = columns.wanted
    for name in names:
        if len(schema.get_all_field_indices(name)) != 1:
            raise SourceError(f"{url}: has no column {name!r}, which other files of the dataset have")
    return names


def _read_group(
    reader: pq.ParquetFile,
    stream: SourceStream,
    number: int,
    wanted: list[str],
    columns: Columns,
    place: Place,
    skip: int,
) -> Iterator[Piece]:
    group = reader.metadata.row_group(number)
    done = 0
    batches = reader.iter_batches(_batch_rows(group), row_groups=[number], columns=wanted)
    while done < group.num_rows:
        try:
            batch = next(batches)
        except StopIteration:
            yield from _lost(stream.url, number, done, group.num_rows, skip, "it holds fewer rows than it declares")
            return
        except (pa.ArrowException, OSError, ValueError) as error:
            stream.check()
            yield from _lost(stream.url, number, done, group.num_rows, skip, describe(error))
            return
        left = max(0, min(skip - done, batch.num_rows))
        done += batch.num_rows
        if left:
            yield Skipped(left)
        if left < batch.num_rows:
            yield from found_rows(batch.slice(left), columns, place, place.root, stream.url)


def _batch_rows(group: Any) -> int:
    stored = sum(group.column(i).total_uncompressed_size for i in range(group.num_columns))
    return max(1, min(BATCH_ROWS, BATCH_BYTES * max(group.num_rows, 1) // max(stored, 1)))


def _lost(url: str, number: int, done: int, rows: int, skip: int, why: str) -> Iterator[Piece]:
    """The footer knows how many rows are lost, so each of them is accounted for, and rows keep their numbers."""
    passed = max(0, min(skip, rows) - done)
    if passed:
        yield Skipped(passed)
    message = f"rows {done} to {rows - 1} of row group {number} of {url} are lost: {why}"
    left = rows - done - passed
    if left > FAILED_ROWS:
        yield Lost(1, message)
        yield Skipped(left - 1)
    elif left:
        yield Lost(left, message)
