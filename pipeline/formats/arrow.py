"""Arrow IPC files and streams, as `save_to_disk` writes them; local ones are mapped, not read whole.

Read with pyarrow and not through `datasets`, which refuses such folders when streaming.
"""

from collections.abc import Generator, Iterator
from typing import Any

import pyarrow as pa

from pipeline.columns import AUDIO_NAMES, Columns, Survey, checked
from pipeline.dataset_files import SourceStream, describe, in_threads, is_url, open_file
from pipeline.errors import SourceError
from pipeline.formats.parquet import FILES_SURVEYED, features_of, spread
from pipeline.formats.pieces import Lost, Piece, Skipped, found_rows
from pipeline.places import Place
from pipeline.records import SourceFile

BATCH_ROWS = 256  # of a record batch, at a time
SAMPLE_ROWS = 8
MAGIC = b"ARROW1"
ERRORS = (pa.ArrowException, OSError, ValueError)


def _open(stream: SourceStream) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The columns and the batches, each with buffers of the lengths that it declares. One of ERRORS if damaged."""
    head = stream.read(len(MAGIC))
    stream.seek(0)
    source = stream if is_url(stream.url) else pa.memory_map(stream.url)
    if head == MAGIC:
        reader = pa.ipc.open_file(source)
        return reader.schema, _checked(reader.get_batch(i) for i in range(reader.num_record_batches))
    stream_reader = pa.ipc.open_stream(source)
    return stream_reader.schema, _checked(iter(stream_reader))


def _checked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        batch.validate()
        yield batch


def survey(files: list[SourceFile]) -> Survey:
    """SourceError where none of the files looked at holds Arrow data."""
    looked = spread(files, FILES_SURVEYED)
    found = in_threads(_schema, [file.url for file in looked])
    good = [(file.url, schema) for file, schema in zip(looked, found, strict=True) if isinstance(schema, pa.Schema)]
    if not good:
        raise SourceError(f"{looked[0].url}: isn't an Arrow file that can be read: {found[0]}")
    features: dict[str, Any] = {}
    for _, schema in good:
        features.update(features_of(schema))
    return Survey(tuple(good), features, _samples(good[0][0]))


def _schema(url: str) -> pa.Schema | str:
    with open_file(url) as stream:
        try:
            return checked(_open(stream)[0])
        except ERRORS as error:
            stream.check()
            return describe(error)


def _first_batch(url: str) -> pa.RecordBatch | None:
    with open_file(url) as stream:
        try:
            batch = next((batch for batch in _open(stream)[1] if batch.num_rows), None)
            if batch is not None:
                batch = batch.slice(0, SAMPLE_ROWS)
                batch.validate(full=True)
            return batch
        except ERRORS:
            stream.check()
            return None


def _samples(url: str) -> dict[str, list[str]]:
    batch = _first_batch(url)
    if batch is None:
        return {}
    names = [f.name for f in batch.schema if f.name in AUDIO_NAMES and str(f.type).endswith("string")]
    return {name: [v for v in batch.column(name).to_pylist() if v] for name in names if names.count(name) == 1}


def holds_sound(file: SourceFile, column: str) -> bool:
    """Whether the first rows hold the audio itself, and not its path."""
    batch = _first_batch(file.url)
    values = batch.column(column).to_pylist() if batch is not None else []
    return not values or any(isinstance(v, bytes) or (isinstance(v, dict) and v.get("bytes")) for v in values)


def count(file: SourceFile, at_most: int | None = None) -> int | None:
    """Rows of the file, up to the first batch that passes `at_most`; None where it isn't Arrow data."""
    rows = 0
    with open_file(file.url) as stream:
        try:
            for batch in _open(stream)[1]:
                rows += batch.num_rows
                if at_most is not None and rows >= at_most:
                    break
        except ERRORS:
            stream.check()
            return rows or None
    return rows


def read(
    file: SourceFile, columns: Columns, place: Place, skip: int, span: tuple[int, int] | None, options: dict[str, Any]
) -> Generator[Piece, None, None]:
    """The rows after the first `skip`. Damaged data ends the file with one lost row for its rest."""
    names = columns.wanted
    done = 0
    with open_file(file.url) as stream:
        try:
            schema, batches = _open(stream)
            missing = [name for name in names if len(schema.get_all_field_indices(name)) != 1]
            if missing:
                raise SourceError(f"{file.url}: has no column {missing[0]!r}, which other files of the dataset have")
            while (batch := next(batches, None)) is not None:
                passed = min(max(0, skip - done), batch.num_rows)
                done += batch.num_rows
                if passed:
                    yield Skipped(passed)
                wanted = batch.select(names)
                for start in range(passed, batch.num_rows, BATCH_ROWS):
                    yield from _rows(wanted.slice(start, BATCH_ROWS), columns, place, file.url)
        except ERRORS as error:
            stream.check()
            message = f"the rest of {file.url} after {done} rows is lost: {describe(error)}"
            yield Lost(1, message) if done >= skip else Skipped(1)


def _rows(batch: pa.RecordBatch, columns: Columns, place: Place, url: str) -> Iterator[Piece]:
    """The rows of a batch, once its offsets are known to lie within it: Arrow itself trusts them."""
    try:
        batch.validate(full=True)
    except pa.ArrowException as error:
        yield Lost(batch.num_rows, f"{batch.num_rows} rows of {url} are lost: {describe(error)}")
        return
    yield from found_rows(batch, columns, place, place.root, url)
