"""Tar files of samples: members that share a key, one for each column.

Read with our own walk over the tar and not through `datasets`, which takes every member into memory, raises on a
sample whose columns differ, and hears nothing of a tar that is cut or damaged. Decodes the few members that are text,
numbers or JSON; sound stays as it is.
"""

import json
import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pipeline import endings
from pipeline.columns import Columns, Survey, merge_types
from pipeline.dataset_files import describe, open_file
from pipeline.endings import ending, words
from pipeline.errors import SourceError
from pipeline.formats.arrays import npy_array
from pipeline.formats.pieces import Found, Lost, Piece, Skipped, key_text
from pipeline.formats.tar import Damaged, Member, walk
from pipeline.places import Place
from pipeline.records import Audio, SourceFile

SAMPLES_SURVEYED = 100  # of the first file, and of the last
FILES_TRIED = 8  # that may be empty or damaged before the dataset is taken to be
NAME = re.compile(r"^((?:.*/)?[^./][^./]*)\.([^/]+)$", re.DOTALL)
TEXT = frozenset(words("txt text transcript"))
NUMBER = frozenset(words("cls cls2 index inx id"))
JSON = frozenset(words("json jsn"))
KEY = "__key__"


@dataclass(slots=True)
class Sample:
    key: str
    members: dict[str, Member] = field(default_factory=dict)  # by column


def split_name(name: str) -> tuple[str, str] | None:
    """Key and column of a member: `a.b/c.d.wav` is `a.b/c` and `d.wav`. None for what belongs to no sample."""
    text = name.encode("utf-8", "backslashreplace").decode()  # of a name that isn't UTF-8
    match = NAME.match(text.removeprefix("./"))
    return (match[1], match[2]) if match else None


class Samples:
    """The samples of one tar. `damage` is what ended it early, `incomplete` whether that was within a sample."""

    def __init__(self, file: SourceFile, wanted: Callable[[int, str], bool]):
        self._file = file
        self._wanted = wanted
        self._current: Sample | None = None
        self._index = -1  # of the current sample
        self.damage: str | None = None

    def _take(self, name: str) -> bool:
        """Told of each member before its data is read: where a sample starts, and whether the data is wanted."""
        parts = split_name(name)
        if parts is None:
            return False
        new = self._starts_sample(parts)
        return self._wanted(self._index + new, parts[1])

    def _starts_sample(self, parts: tuple[str, str]) -> bool:
        sample = self._current
        return sample is None or sample.key != parts[0] or parts[1] in sample.members

    def __iter__(self) -> Iterator[Sample]:
        with open_file(self._file.url) as stream:
            try:
                for member in walk(stream, self._file.size, self._take):
                    parts = split_name(member.name)
                    if parts is None:
                        continue
                    if self._starts_sample(parts):
                        if self._current is not None:
                            yield self._current
                        self._current = Sample(parts[0])
                        self._index += 1
                    assert self._current is not None
                    self._current.members[parts[1]] = member
            except Damaged as error:
                self.damage = str(error)
            if self._current is not None:
                yield self._current


def survey(files: list[SourceFile]) -> Survey:
    """Columns and their types, from the first samples of the first file that has any, and of the last."""
    values: dict[str, list[Any]] = {}
    seen = 0
    sounds: dict[str, None] = {}
    several = False
    damage = None
    for file in dict.fromkeys((*files[:FILES_TRIED], files[-1])):
        if seen and file is not files[-1]:
            continue  # one of the first is enough
        samples = Samples(file, lambda i, column: ending(column) in TEXT | NUMBER | JSON | {"npy"})
        for sample, _ in zip(samples, range(SAMPLES_SURVEYED), strict=False):
            seen += 1
            heard = [column for column in sample.members if ending(column) in endings.AUDIO]
            sounds.update(dict.fromkeys(heard))
            several |= len(heard) > 1
            for column, member in sample.members.items():
                values.setdefault(column, []).append(_sampled(column, member))
        damage = damage or samples.damage
    if not seen:
        why = f": {damage}" if damage else ""
        raise SourceError(f"{files[0].url}: holds no samples (members named KEY.COLUMN){why}")
    if not sounds and not any(ending(column) in endings.AUDIO for column in values):
        sounds = dict.fromkeys(column for column in values if ending(column) in endings.VIDEO)
    fields, as_text = [], []
    for column, found in values.items():
        kind, text = _type_of(column, found)
        fields.append(pa.field(column, kind))
        as_text += [column] if text else []
    schema = pa.schema([*fields, pa.field(KEY, pa.string())])
    media = {column: {"_type": "Image"} for column in values if ending(column) in endings.PICTURE | endings.VIDEO}
    media |= {column: {"_type": "Audio"} for column in values if ending(column) in endings.AUDIO}
    return Survey(((files[0].url, schema),), media, {}, tuple(sounds), KEY, {"as_text": as_text}, several)


def _sampled(column: str, member: Member) -> Any:
    """A member's value (of an array its type alone), or the error that it raised."""
    try:
        value: Any = b"" if member.data is None else decode(column, member.data, False)
        return value.type if isinstance(value, pa.Array) else value
    except (ValueError, RecursionError, pa.ArrowException) as error:
        return error


def _type_of(column: str, values: list[Any]) -> tuple[pa.DataType, bool]:
    """The type that holds all values, and whether that takes them as text, since they differ in kind."""
    good = [value for value in values if not isinstance(value, Exception)]
    if ending(column) in NUMBER | JSON and len(good) < len(values):
        return pa.string(), True
    try:
        kind = pa.array([value for value in good if not isinstance(value, pa.DataType)]).type
        for value in good:
            if isinstance(value, pa.DataType):
                kind = merge_types(kind, value) or value
        return (kind, False) if _can_be_stored(kind) else (pa.string(), True)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        return pa.string(), True


def _can_be_stored(kind: pa.DataType) -> bool:
    """Parquet has no struct without fields."""
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(_can_be_stored(child.type) for child in kind)
    return _can_be_stored(kind.value_type) if pa.types.is_list(kind) else True


def decode(column: str, data: bytes, as_text: bool) -> Any:
    """A member's value: text, an integer, JSON or an array by its ending, else its bytes. ValueError if it's none."""
    kind = ending(column)
    if kind in TEXT or as_text:
        return data.decode("utf-8")
    if kind in NUMBER:
        return int(data)
    if kind in JSON:
        return json.loads(data)
    return npy_array(data) if kind == "npy" else data


def count(file: SourceFile, at_most: int | None = None) -> int | None:
    """Samples of the tar, by its headers alone; no more than `at_most` are looked for."""
    samples = Samples(file, lambda i, column: False)
    rows = 0
    for _ in samples:
        rows += 1
        if at_most is not None and rows >= at_most:
            return rows
    return rows + (samples.damage is not None)


def holds_sound(file: SourceFile, column: str) -> bool:
    return True


def read(
    file: SourceFile, columns: Columns, place: Place, skip: int, span: tuple[int, int] | None, options: dict[str, Any]
) -> Generator[Piece, None, None]:
    """The samples after the first `skip`. A cut or damaged tar ends with one lost row for its rest."""
    needed = set(columns.wanted)

    def wanted(index: int, column: str) -> bool:
        return index >= skip and (column in needed or (not options.get("named") and _is_sound(column, columns)))

    samples = Samples(file, wanted)
    index = -1
    for index, sample in enumerate(samples):
        if index < skip:
            yield Skipped(1)
        elif samples.damage is not None and _sound_of(sample, columns, options) is None:
            break  # cut off before its sound was there
        else:
            yield _row(sample, columns, options)
    else:
        index += 1
    if samples.damage is not None:
        message = f"the rest of {file.url} after {index} samples is lost: {samples.damage}"
        yield Lost(1, message) if index >= skip else Skipped(1)


def _is_sound(column: str, columns: Columns) -> bool:
    return ending(column) in endings.AUDIO and column not in columns.kept


def _sound_of(sample: Sample, columns: Columns, options: dict[str, Any]) -> str | None:
    """The column of the sample's sound: a chosen one, else where none was named, the one that is audio by its name."""
    for column in columns.audio:
        if column in sample.members:
            return column
    others = [] if options.get("named") else [column for column in sample.members if _is_sound(column, columns)]
    return others[0] if len(others) == 1 else None


def _row(sample: Sample, columns: Columns, options: dict[str, Any]) -> Found:
    sound = _sound_of(sample, columns, options)
    member = sample.members[sound] if sound is not None else None
    audio = Audio(member.data, f"{sample.key}.{sound}") if member is not None and member.data is not None else None
    as_text = set(options.get("as_text", ()))
    values, problem, key = {}, None, sample.key
    try:
        for name in (name for name in columns.wanted if name not in columns.audio or name in columns.kept):
            values[name] = _value(sample, name, name in as_text)
        if columns.id not in (None, KEY):
            key = key_text(values[columns.id])
        arrays = [_array(values[name], target) for name, target in zip(columns.kept, columns.schema, strict=True)]
    except (ValueError, TypeError, OverflowError, RecursionError, pa.ArrowException) as error:
        name = next(reversed(values), "")
        problem = f"a column near {name!r} isn't what it is in other samples: {describe(error)}"
        arrays = [pa.nulls(1, target.type) for target in columns.schema]
    return Found(key, audio, columns.batch(arrays, 1), problem)


def _value(sample: Sample, name: str, as_text: bool) -> Any:
    if name == KEY:
        return sample.key
    member = sample.members.get(name)
    return None if member is None or member.data is None else decode(name, member.data, as_text)


def _array(value: Any, target: pa.Field) -> pa.Array:
    try:
        if isinstance(value, pa.Array):
            return value.cast(target.type)
        return pa.array([value], target.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"column {target.name!r} isn't {target.type}: {describe(error)}") from error
