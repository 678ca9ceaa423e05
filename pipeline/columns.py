"""Which column is the audio, which are kept and under what names and types, the same for every file of a run.

Reading the columns is left to `formats`; what audio is in one of them, to `formats.pieces`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from pipeline import endings
from pipeline.endings import words
from pipeline.errors import SourceError

RESERVED = frozenset(words("key codes num_frames duration sample_rate num_channels channel shard row"))
MEDIA_FEATURES = frozenset(words("Audio Image Video Pdf Nifti Mesh"))
AUDIO_NAMES = words(
    "audio audio_path audio_file audio_filepath audio_file_path audio_filename audio_url path file filepath file_path "
    "file_name filename wav wav_path wav_file flac mp3 sound recording speech clip url"
)
REMEDY = "make the files alike, or leave the column out by input.keep_columns"


@dataclass(frozen=True, slots=True)
class Survey:
    """What is known of a dataset's columns from the files looked at."""

    schemas: tuple[tuple[str, pa.Schema], ...]  # (file, its columns)
    features: dict[str, Any] = field(default_factory=dict)  # column -> huggingface feature, as in a dataset card
    samples: dict[str, list[str]] = field(default_factory=dict)  # column of strings -> its first few
    sounds: tuple[str, ...] = ()  # columns that the format itself knows to be audio
    key: str | None = None  # the format's own column of keys
    options: dict[str, Any] = field(default_factory=dict)  # what the format's reader is to be told
    several: bool = False  # whether a row has more than one of the `sounds`


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that are read, and the schema under which the kept ones leave."""

    audio: tuple[str, ...]
    id: str | None
    kept: tuple[str, ...]  # source names, in the order of `schema`
    schema: pa.Schema  # of the kept columns: output names and types

    @property
    def wanted(self) -> list[str]:
        """The columns to be read, each once."""
        names = [*self.audio, *([self.id] if self.id is not None else []), *self.kept]
        return list(dict.fromkeys(names))

    def keep(self, batch: pa.RecordBatch, url: str) -> pa.RecordBatch:
        """The kept columns of a batch, in the run's schema. SourceError where one is missing or of another type."""
        arrays = []
        for name, target in zip(self.kept, self.schema, strict=True):
            index = batch.schema.get_field_index(name)
            if index < 0:
                raise SourceError(f"{url}: has no column {name!r}, which the run keeps; {REMEDY}")
            array = batch.column(index)
            if array.type != target.type:
                if merge_types(plain(array.type), target.type) != target.type:
                    raise SourceError(
                        f"{url}: column {name!r} is {array.type}, in the rest of the run {target.type}; {REMEDY}"
                    )
                array = array.cast(target.type)
            arrays.append(array)
        return self.batch(arrays, batch.num_rows)

    def batch(self, arrays: list[pa.Array], num_rows: int) -> pa.RecordBatch:
        """Kept columns as a batch; one without columns has rows all the same."""
        if not arrays:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * num_rows, pa.struct([])))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def checked(schema: pa.Schema) -> pa.Schema:
    """The schema, if all its names are text. ValueError where one isn't UTF-8, which Arrow finds out late."""
    for column in schema:
        assert column.name is not None
        plain(column.type)  # looks at the names within
    return schema


def plain(kind: pa.DataType) -> pa.DataType:
    """The type without what depends on a process or a writer: extension types, nullability, names of items."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain(kind.storage_type)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(child.name, plain(child.type)) for child in kind])
    if pa.types.is_list(kind):
        return pa.list_(plain(kind.value_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(plain(kind.value_type))
    return kind


def merge_types(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """The type that holds both without loss: null gives way, 64-bit offsets win. None where there is no such type."""
    if a == b or pa.types.is_null(b):
        return a
    if pa.types.is_null(a):
        return b
    if _is_text(a) and _is_text(b):
        return pa.large_string()
    if _is_bytes(a) and _is_bytes(b):
        return pa.large_binary()
    if pa.types.is_struct(a) and pa.types.is_struct(b) and [f.name for f in a] == [f.name for f in b]:
        merged = [merge_types(x.type, y.type) for x, y in zip(a, b, strict=True)]
        if all(kind is not None for kind in merged):
            return pa.struct([pa.field(child.name, kind) for child, kind in zip(a, merged, strict=True)])
    if _is_list(a) and _is_list(b):
        inner = merge_types(a.value_type, b.value_type)
        make = pa.large_list if pa.types.is_large_list(a) or pa.types.is_large_list(b) else pa.list_
        return None if inner is None else make(inner)
    return None


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def is_bytes_and_path(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) and {child.name for child in kind} in ({"bytes", "path"}, {"path"})


def can_be_audio(kind: pa.DataType) -> bool:
    """A struct of bytes and path (or one of them), bytes, or text."""
    if pa.types.is_struct(kind):
        return {child.name for child in kind} <= {"bytes", "path"} and kind.num_fields > 0
    return _is_text(kind) or _is_bytes(kind)


def choose_columns(survey: Survey, audio: str | None, id: str | None, keep: Literal["all"] | Sequence[str]):
    """-> (`Columns`, how the audio column was chosen). SourceError naming what is missing, and what there is."""
    first = survey.schemas[0][1]
    names = list(dict.fromkeys(name for _, schema in survey.schemas for name in schema.names))
    sounds, how = choose_audio(survey, audio)
    if id is not None and id not in names:
        raise SourceError(f"input.id_column: {id!r} isn't in the dataset; its columns are {', '.join(names)}")
    kept = _kept_names(names, first, survey, sounds, keep)
    types = unify(survey.schemas, [*kept, *([id] if id is not None else [])])
    outputs = output_names(kept, names)
    schema = pa.schema([pa.field(out, types[name]) for name, out in zip(kept, outputs, strict=True)])
    return Columns(sounds, id if id is not None else survey.key, tuple(kept), schema), how


def choose_audio(survey: Survey, asked: str | None) -> tuple[tuple[str, ...], str]:
    """The audio column (several where each row has but one of them), and how it was found."""
    schema = survey.schemas[0][1]
    kinds = {name: schema.field(i).type for i, name in enumerate(schema.names)}
    if asked is not None:
        name = (
            asked if asked in kinds else next((n for n in kinds if survey.sounds and n.lower() == asked.lower()), None)
        )
        if name is None:
            raise SourceError(f"input.audio_column: {asked!r} isn't in the dataset; its columns are {', '.join(kinds)}")
        if not can_be_audio(kinds[name]) and not pa.types.is_null(kinds[name]):
            raise SourceError(f"input.audio_column: {asked!r} holds {kinds[name]}, not audio or paths of it")
        return (name,), "input.audio_column names it"
    if survey.several:
        raise SourceError(
            f"input.audio_column: choose one of {', '.join(survey.sounds)}: rows have more than one of them"
        )
    if survey.sounds:
        return survey.sounds, "its files are named as audio"
    with_feature = [n for n, f in survey.features.items() if n in kinds and _feature_type(f) == "Audio"]
    other_media = {n for n, f in survey.features.items() if _has_media(f) and n not in with_feature}
    structs = [n for n, kind in kinds.items() if is_bytes_and_path(kind) and n not in other_media]
    binaries = [n for n, kind in kinds.items() if n.lower() in AUDIO_NAMES and _is_bytes(kind)]
    paths = [n for n in AUDIO_NAMES if n in kinds and _is_text(kinds[n]) and _look_like_audio(survey.samples.get(n))]
    if len(structs) > 1 and not with_feature:
        structs = [n for n in structs if n == "audio"] or structs
    for found, how in (
        (with_feature, "it has the Audio feature"),
        (structs, "it's the one struct of bytes and path"),
        (binaries, "it holds bytes and is named as audio"),
        (paths[:1], "its values look like paths of audio"),
    ):
        if len(found) == 1:
            return (found[0],), how
        if found:
            raise SourceError(f"input.audio_column: choose one of {', '.join(found)}: each of them could be the audio")
    raise SourceError(
        f"input.audio_column: no column is known to be audio; name one of the dataset's: {', '.join(kinds) or 'none'}"
    )


def _look_like_audio(values: list[str] | None) -> bool:
    found = [endings.ending(value.split("?")[0]) for value in values or []]
    return bool(found) and all(ending in endings.AUDIO | endings.VIDEO for ending in found)


def _feature_type(feature: Any) -> str | None:
    return feature.get("_type") if isinstance(feature, dict) else None


def _has_media(feature: Any) -> bool:
    """Whether a feature is, or has within it, audio, a picture or the like."""
    if isinstance(feature, list):
        return any(_has_media(part) for part in feature)
    if not isinstance(feature, dict):
        return False
    return _feature_type(feature) in MEDIA_FEATURES or any(_has_media(part) for part in feature.values())


def _kept_names(names: list[str], schema: pa.Schema, survey: Survey, sounds: tuple[str, ...], keep: Any) -> list[str]:
    if keep == "all":
        media = {name for name, feature in survey.features.items() if _has_media(feature)}
        media |= {field.name for field in schema if is_bytes_and_path(field.type)}
        return [name for name in names if name not in media and name not in sounds]
    missing = [name for name in keep if name not in names]
    if missing:
        raise SourceError(
            f"input.keep_columns: {', '.join(map(repr, missing))} not in the dataset; it has {', '.join(names)}"
        )
    sound = [name for name in keep if name in sounds and not _is_text(schema.field(name).type)]
    if sound:
        raise SourceError(f"input.keep_columns: {sound[0]!r} is the audio itself, which isn't kept; leave it out")
    return list(dict.fromkeys(keep))


def unify(schemas: Iterable[tuple[str, pa.Schema]], wanted: list[str]) -> dict[str, pa.DataType]:
    """The type of each wanted column over all files. SourceError naming the first file and column that don't fit."""
    types: dict[str, pa.DataType] = {}
    origin: dict[str, str] = {}
    for url, schema in schemas:
        for name in wanted:
            indices = schema.get_all_field_indices(name)
            if len(indices) != 1:
                there = "has no column" if not indices else "has more than one column"
                raise SourceError(f"{url}: {there} {name!r}, which other files have once; {REMEDY}")
            kind = plain(schema.field(indices[0]).type)
            merged = merge_types(types[name], kind) if name in types else kind
            if merged is None:
                raise SourceError(f"{url}: column {name!r} is {kind}, in {origin[name]} it's {types[name]}; {REMEDY}")
            types[name] = merged
            origin.setdefault(name, url)
    return types


def output_names(kept: Sequence[str], names: Sequence[str]) -> list[str]:
    """The kept columns' names in the output: a taken one gets underscores until it's free."""
    taken = RESERVED | set(names)
    outputs = []
    for name in kept:
        out = name
        while out in RESERVED or (out != name and out in taken):
            out += "_"
        taken = taken | {out}
        outputs.append(out)
    return outputs
