"""A dataset as planned shards, and a shard as rows with undecoded audio.

`datasets` says which files a dataset is made of where more than a folder decides that (`hub`, `resolution`); the files
are read by `formats`, each of which says why not through `datasets`: what they share is that a row or file that is bad
never ends the reading of its shard, and that memory stays bounded. Decoding is left to `audio`.
"""

import base64
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from typing import Any

import pyarrow as pa

from pipeline import planning
from pipeline.columns import Columns, Survey, choose_columns
from pipeline.dataset_files import change_of, changed_files
from pipeline.errors import SourceError
from pipeline.formats import archive, arrow, folder, manifest, parquet, webdataset
from pipeline.formats.pieces import Found, Lost, Piece, Skipped
from pipeline.places import Place
from pipeline.records import FailedRow, Row, Shard, SourceFile
from pipeline.resolution import Resolved, resolve
from pipeline.spec import InputSpec

__all__ = ["Source", "SourceInfo", "SourceReader", "changed_files", "open_source"]

READERS: dict[str, Callable[..., Generator[Piece, None, None]]] = {
    "parquet": parquet.read,
    "arrow": arrow.read,
    "webdataset": webdataset.read,
    "audiofolder": folder.read,
    "zip": archive.read,
    "json": manifest.read,
    "csv": manifest.read,
}


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """What was found, for a person to look at."""

    builder: str
    path: str
    revision: str | None  # the commit, of a dataset of the hub
    splits: dict[str, int]  # those read -> files
    other_splits: dict[str, int]  # those not read -> files
    num_files: int
    num_bytes: int | None
    columns: dict[str, str]  # name -> arrow type
    audio_column: str
    how_audio_column_was_chosen: str
    key_rule: str
    kept_columns: dict[str, str]  # source name -> output name
    kept_features: dict[str, Any]  # output name -> huggingface feature, where the dataset declares one
    remote: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SourceReader:
    """All that an actor needs to read any shard: small, picklable, and JSON by `to_json`."""

    builder: str
    root: str
    columns: Columns
    options: dict[str, Any] = field(default_factory=dict)
    first_file_only: bool = False  # a shard's other files are there to be compared, not to be read

    def to_json(self) -> dict[str, Any]:
        columns = self.columns
        return {
            "builder": self.builder,
            "root": self.root,
            "audio": list(columns.audio),
            "id": columns.id,
            "kept": list(columns.kept),
            "schema": base64.b64encode(columns.schema.serialize()).decode(),
            "options": self.options,
            "first_file_only": self.first_file_only,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "SourceReader":
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value["schema"])))
        columns = Columns(tuple(value["audio"]), value["id"], tuple(value["kept"]), schema)
        return cls(value["builder"], value["root"], columns, value["options"], value["first_file_only"])

    @property
    def kept_schema(self) -> pa.Schema:
        return self.columns.schema

    def rows(self, shard: Shard, start: int = 0) -> Iterator[Row | FailedRow]:
        """The shard's rows from `start` on, in order. A row that can't be read is a `FailedRow` of stage `source`.

        SourceError where a file changed since it was planned, isn't made like the others, or can't be got at now.
        """
        first, stop = shard.rows or (0, None)
        row = -first  # of the next piece, within the shard
        end = None if stop is None else stop - first
        for file in shard.files[:1] if self.first_file_only else shard.files:
            if end is not None and row >= end:
                return
            change = change_of(file)
            if change is not None:
                raise SourceError(f"{change}; put the file back as it was, or plan a new run")
            with closing(self._pieces(file, shard, max(0, start - row))) as pieces:
                for piece in pieces:
                    match piece:
                        case Skipped(count):
                            row += count
                        case Lost(count, message):
                            places = range(max(row, start), row + count if end is None else min(row + count, end))
                            for at in places:
                                yield FailedRow(shard.index, at, f"{shard.index}/{at}", "source", "unreadable", message)
                            row += count
                        case Found():
                            yield self._row(piece, shard.index, row)
                            row += 1
                    if end is not None and row >= end:
                        break

    def _pieces(self, file: SourceFile, shard: Shard, skip: int) -> Generator[Piece, None, None]:
        read = READERS[self.builder]
        return read(file, self.columns, Place(self.root), skip, shard.row_groups, self.options)

    def _row(self, found: Found, shard: int, row: int) -> Row | FailedRow:
        key = found.key or f"{shard}/{row}"
        if found.problem is not None:
            return FailedRow(shard, row, key, "source", "unreadable", found.problem)
        return Row(shard, row, key, found.audio, found.kept)


@dataclass(frozen=True)
class Source:
    """A dataset that was found and understood."""

    spec: InputSpec
    resolved: Resolved
    survey: Survey
    reader: SourceReader
    info: SourceInfo

    @property
    def kept_schema(self) -> pa.Schema:
        """The kept columns under their output names and types, the same for every row of the run."""
        return self.reader.kept_schema

    @cached_property
    def _shards(self) -> list[Shard]:
        reader, limit = self.reader, self.spec.limit
        layout = planning.Layout(
            reader.builder, reader.root, reader.columns.audio[0], reader.options, self.spec.rows_per_shard
        )
        splits = self.resolved.splits.items()
        shards = chain.from_iterable(layout.shards(split, files, limit is None) for split, files in splits)
        return planning.numbered(planning.limited(shards, limit, layout.count))

    def plan(self) -> list[Shard]:
        """The shards, the same each time. None where the dataset has no rows that are known of."""
        return self._shards

    def peek(self, n: int) -> list[Row | FailedRow]:
        """The first `n` rows."""
        rows = chain.from_iterable(self.reader.rows(shard) for shard in self.plan())
        return list(islice(rows, n))

    @property
    def num_rows(self) -> int | None:
        """Rows of the whole plan, where each shard knows its own; 0 is an empty dataset."""
        rows = [shard.num_rows for shard in self.plan()]
        return None if None in rows else sum(n for n in rows if n is not None)

    def fingerprint_facts(self) -> dict[str, Any]:
        """What makes the rows what they are, but for the files themselves, which the plan records."""
        spec = self.spec
        return {
            "path": self.info.path,
            "name": spec.name,
            "revision": self.info.revision or spec.revision,
            "split": list(self.resolved.splits),
            "data_files": spec.data_files,
            "data_dir": spec.data_dir,
            "builder": self.resolved.builder,
            "audio_column": list(self.reader.columns.audio),
            "id_column": self.reader.columns.id,
            "keep_columns": {f.name: str(f.type) for f in self.kept_schema},
            "rows_per_shard": spec.rows_per_shard,
            "limit": spec.limit,
        }


def open_source(spec: InputSpec) -> Source:
    """Finds the dataset's files and columns. SourceError, one line, where something isn't there."""
    resolved = resolve(spec)
    files = [file for split in resolved.splits.values() for file in split]
    if not files:
        raise SourceError(f"input.path: {spec.path}: the split {spec.split} has no files")
    survey = _survey(resolved, files, spec.id_column)
    survey = replace(survey, features={**survey.features, **resolved.features})
    asked = spec.audio_column
    if resolved.builder in ("audiofolder", "zip") and asked == folder.AUDIO:
        asked = None  # the name that `datasets` gives it, whatever the metadata calls it
    columns, how = choose_columns(survey, asked, spec.id_column, spec.keep_columns)
    options = {**survey.options, "named": asked is not None}
    by_table = resolved.builder in ("json", "csv") or bool(survey.options.get("metadata"))
    reader = SourceReader(resolved.builder, resolved.root, columns, options, by_table)
    return Source(spec, resolved, survey, reader, _info(spec, resolved, survey, reader, how))


def _survey(resolved: Resolved, files: list[SourceFile], id_column: str | None) -> Survey:
    match resolved.builder:
        case "parquet":
            return parquet.survey(files)
        case "arrow":
            return arrow.survey(files)
        case "webdataset":
            return webdataset.survey(files)
        case "zip":
            return archive.survey(files)
        case "audiofolder":
            return folder.survey(files, resolved.root, id_column)
        case kind:
            return manifest.survey(files, kind, id_column)


def _info(spec: InputSpec, resolved: Resolved, survey: Survey, reader: SourceReader, how: str) -> SourceInfo:
    files = [file for split in resolved.splits.values() for file in split]
    sizes = [file.size for file in files]
    columns = reader.columns
    kept = dict(zip(columns.kept, columns.schema.names, strict=True))
    return SourceInfo(
        builder=resolved.builder,
        path=spec.path if resolved.revision or "://" in spec.path else os.path.abspath(os.path.expanduser(spec.path)),
        revision=resolved.revision,
        splits={split: len(found) for split, found in resolved.splits.items()},
        other_splits=resolved.left_out,
        num_files=len(files),
        num_bytes=None if None in sizes else sum(size for size in sizes if size is not None),
        columns={f.name: str(f.type) for f in survey.schemas[0][1]},
        audio_column=" or ".join(columns.audio),
        how_audio_column_was_chosen=how,
        key_rule=_key_rule(resolved.builder, columns),
        kept_columns=kept,
        kept_features={kept[name]: feature for name, feature in survey.features.items() if name in kept},
        remote=not Place(resolved.root).local,
        notes=(*resolved.notes, *_left_out(resolved, files, reader)),
    )


def _left_out(resolved: Resolved, files: list[SourceFile], reader: SourceReader) -> list[str]:
    if not reader.options.get("metadata"):
        return []
    count = folder.unlisted(files, Place(resolved.root), reader.options)
    return [f"audio files that no metadata file names, and that are left out: {count}"] if count else []


def _key_rule(builder: str, columns: Columns) -> str:
    if columns.id is not None:
        return f"column {columns.id}; SHARD/ROW where it's null"
    return "path within the dataset" if builder == "audiofolder" else "path of the audio; SHARD/ROW where there is none"
