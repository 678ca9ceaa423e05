"""Tables of text, CSV and JSON (lines or one array), whose rows point at audio by path.

Read whole, once a process, and not through `datasets`, which takes types from ten thousand rows at a time and ends at a
line that is wrong. Here the types are those of the whole table, times and dates stay the text that they are, and a
wrong line is a lost row.
"""

from collections.abc import Generator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from pipeline.columns import AUDIO_NAMES, Columns, Survey
from pipeline.dataset_files import SourceStream, describe, open_file
from pipeline.endings import ending, folder
from pipeline.errors import SourceError
from pipeline.formats.json_table import load_json
from pipeline.formats.pieces import Lost, Piece, Skipped, found_rows
from pipeline.places import Place
from pipeline.records import SourceFile

BATCH_ROWS = 256
SAMPLE_ROWS = 8
TABLES_KEPT = 2  # in memory of a process


@dataclass(frozen=True, slots=True)
class Manifest:
    """A table of every row; those of `bad` hold nulls, and say why."""

    table: pa.Table
    bad: dict[int, str]


@lru_cache(TABLES_KEPT)
def load(file: SourceFile, kind: str, text_columns: tuple[str, ...] = ()) -> Manifest:
    """kind: csv, json or parquet. text_columns: of CSV, those that are text whatever they look like.

    SourceError where the file isn't such a table.
    """
    with open_file(file.url) as stream:
        try:
            if kind == "parquet":
                return Manifest(pq.read_table(stream), {})
            if kind == "csv":
                return _load_csv(stream, "\t" if ending(file.url) == "tsv" else ",", text_columns)
            return Manifest(*load_json(stream.read()))
        except (pa.ArrowException, OSError, ValueError, RecursionError) as error:
            stream.check()
            raise SourceError(f"{file.url}: isn't a table that can be read: {describe(error)}") from error


def _load_csv(stream: SourceStream, separator: str, text_columns: tuple[str, ...]) -> Manifest:
    text = stream.read()
    text.decode("utf-8")  # the parser's own complaint about a wrong line would be lost
    data = pa.py_buffer(text)
    bad: dict[int, str] = {}

    def note(row: Any) -> str:
        place = row.number - 2  # counted from 1, the header included
        bad[place] = f"row {place} has {row.actual_columns} fields where the header has {row.expected_columns}"
        return "skip"

    def parse(names: list[str]) -> pa.Table:
        bad.clear()
        return pacsv.read_csv(
            pa.BufferReader(data),
            read_options=pacsv.ReadOptions(use_threads=False),
            parse_options=pacsv.ParseOptions(delimiter=separator, newlines_in_values=True, invalid_row_handler=note),
            convert_options=pacsv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )

    table = parse(list(text_columns))
    times = [field.name for field in table.schema if pa.types.is_temporal(field.type)]
    table = parse([*text_columns, *times]) if times else table
    return Manifest(_with_gaps(table, sorted(bad)), bad)


def _with_gaps(table: pa.Table, gaps: list[int]) -> pa.Table:
    """The table with a row of nulls at each place where a row was left out."""
    parts, taken = [], 0
    for before, gap in enumerate(gaps):
        nulls = pa.table([pa.nulls(1, field.type) for field in table.schema], schema=table.schema)
        parts += [table.slice(taken, gap - before - taken), nulls]
        taken = gap - before
    return pa.concat_tables([*parts, table.slice(taken)])


def survey(files: list[SourceFile], kind: str, id_column: str | None) -> Survey:
    """The columns of every table, for they are read whole anyway."""
    text = (id_column,) if id_column is not None and kind == "csv" else ()
    tables = [(file.url, load(file, kind, text)) for file in files]
    samples: dict[str, list[str]] = {}
    for _, manifest in tables:
        for name in AUDIO_NAMES:
            if name in manifest.table.column_names and name not in samples:
                values = manifest.table[name].slice(0, SAMPLE_ROWS).to_pylist()
                samples[name] = [value for value in values if isinstance(value, str) and value]
    return Survey(
        tuple((url, manifest.table.schema) for url, manifest in tables),
        samples=samples,
        options={"kind": kind, "text": list(text)},
    )


def load_as(file: SourceFile, options: dict[str, Any]) -> Manifest:
    """The table, as the survey of its dataset read it."""
    return load(file, options["kind"], tuple(options["text"]))


def read(
    file: SourceFile, columns: Columns, place: Place, skip: int, span: tuple[int, int] | None, options: dict[str, Any]
) -> Generator[Piece, None, None]:
    """The rows after the first `skip`. SourceError where the file isn't a table any more."""
    manifest = load_as(file, options)
    names = columns.wanted
    missing = [name for name in names if name not in manifest.table.column_names]
    if missing:
        raise SourceError(f"{file.url}: has no column {missing[0]!r}, which other files of the dataset have")
    table = manifest.table.select(names)
    skip = min(skip, table.num_rows)
    if skip:
        yield Skipped(skip)
    row = skip
    for batch in table.slice(skip).to_batches(BATCH_ROWS):
        for found in found_rows(batch, columns, place, folder(file.url), file.url):
            bad = manifest.bad.get(row)
            yield found if bad is None else Lost(1, f"{file.url}: {bad}")
            row += 1
