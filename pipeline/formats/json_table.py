"""JSON, as lines or as one array, into a table that holds every value as it was; what its rows mean is left to others.

Python's parser and not Arrow's, which ends at the first wrong line and takes text that looks like a time for one.
"""

import json
from typing import Any

import pyarrow as pa

CHUNK_ROWS = 20_000  # that are Python objects at a time
PLACE = "\0"  # a column that gives a chunk its length, dropped in the end


class _Mixed(Exception):
    """A column of values of several kinds, which is kept as JSON text."""

    def __init__(self, column: str):
        super().__init__(column)
        self.column = column


def load_json(data: bytes) -> tuple[pa.Table, dict[int, str]]:
    """The table, and what is wrong with those of its rows that couldn't be read and are nulls.

    ValueError where the bytes are no array of objects and no line of them is one.
    """
    data = data.removeprefix(b"\xef\xbb\xbf")
    rows: list[Any]
    if data.lstrip()[:1] == b"[":
        rows = json.loads(data)
        parse = False
    else:
        rows = [line for line in data.split(b"\n") if line.strip()]
        parse = True
    as_text: set[str] = set()
    while True:
        bad: dict[int, str] = {}
        try:
            starts = range(0, len(rows), CHUNK_ROWS)
            table = _concat([_chunk(rows[i : i + CHUNK_ROWS], i, parse, bad, as_text) for i in starts])
        except _Mixed as mixed:
            as_text.add(mixed.column)
            continue
        if rows and len(bad) == len(rows):
            raise ValueError(f"neither an array of objects nor a line for each: {bad[0]}")
        return table, bad


def _chunk(rows: list[Any], start: int, parse: bool, bad: dict[int, str], as_text: set[str]) -> pa.Table:
    values: dict[str, list[Any]] = {}
    for i, row in enumerate(rows):
        try:
            found = json.loads(row) if parse else row
            if not isinstance(found, dict):
                raise ValueError(f"it's of type {type(found).__name__}, not an object")
        except (ValueError, RecursionError) as error:
            bad[start + i] = f"row {start + i} can't be read as JSON: {error}"
            continue
        for name, value in found.items():
            if name not in values:
                values[name] = [None] * len(rows)
            values[name][i] = _text(value) if name in as_text and value is not None else value
    arrays = {PLACE: pa.nulls(len(rows)), **{name: _array(name, column) for name, column in values.items()}}
    return pa.table(arrays)


def _text(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(value)
    return text


def _array(name: str, values: list[Any]) -> pa.Array:
    try:
        array = pa.array(values)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise _Mixed(name) from error
    if not storable(array.type):
        raise _Mixed(name)
    return array


def storable(kind: pa.DataType) -> bool:
    """Whether Parquet holds the type: it has no struct without fields."""
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(storable(child.type) for child in kind)
    return storable(kind.value_type) if pa.types.is_list(kind) else True


def _concat(chunks: list[pa.Table]) -> pa.Table:
    if not chunks:
        return pa.table({})
    for name in dict.fromkeys(name for chunk in chunks for name in chunk.column_names):
        schemas = [pa.schema([chunk.schema.field(name)]) for chunk in chunks if name in chunk.column_names]
        try:
            pa.unify_schemas(schemas, promote_options="permissive")
        except (pa.ArrowException, TypeError) as error:
            raise _Mixed(name) from error
    return pa.concat_tables(chunks, promote_options="permissive").drop_columns([PLACE])
