"""Folders of audio files: a file is a row; or, where a metadata file lists them, a line of it is.

Read here and not through `datasets`, whose Audio feature asks for torchcodec on this path. As there, files that the
metadata doesn't list are left out; unlike there, M4A and other common endings are audio too.
"""

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from pipeline.columns import Columns, Survey
from pipeline.endings import METADATA_NAMES, base, ending
from pipeline.errors import SourceError
from pipeline.formats import manifest
from pipeline.formats.pieces import Found, Piece, Skipped
from pipeline.places import Place
from pipeline.records import Audio, SourceFile

AUDIO = "audio"
FILE_NAME = "file_name"
LABEL = "label"


def is_metadata(url: str) -> bool:
    return base(url) in METADATA_NAMES


def kind_of(url: str) -> str:
    return {"csv": "csv", "jsonl": "json", "parquet": "parquet"}[ending(url)]


def survey(files: list[SourceFile], root: str, id_column: str | None) -> Survey:
    """SourceError where metadata files are of several kinds or don't name their files."""
    tables = [file for file in files if is_metadata(file.url)]
    if not tables:
        return _plain_survey(files, root)
    kinds = sorted({kind_of(file.url) for file in tables})
    if len(kinds) > 1:
        raise SourceError(f"input.path: {root} has metadata files of several kinds: {', '.join(kinds)}; leave one kind")
    found = manifest.survey(tables, kinds[0], id_column)
    for url, schema in found.schemas:
        if FILE_NAME not in schema.names:
            raise SourceError(f"{url}: has no column {FILE_NAME!r}, which names the audio file of each row")
    return replace(found, sounds=(FILE_NAME,), options={**found.options, "metadata": True})


def unlisted(files: list[SourceFile], place: Place, options: dict[str, Any]) -> int:
    """How many audio files no metadata file names, so that they are left out."""
    listed = set()
    for table in files:
        if is_metadata(table.url):
            for name in manifest.load_as(table, options).table[FILE_NAME].to_pylist():
                try:
                    listed.add(place.locate(str(name), table.url.rsplit("/", 1)[0]))
                except ValueError:  # its row says so
                    continue
    return sum(file.url not in listed for file in files if not is_metadata(file.url))


def _plain_survey(files: list[SourceFile], root: str) -> Survey:
    """The folder's name is a label where there are several, all at one depth, as `datasets` has it."""
    folders = {file.url.rsplit("/", 1)[0] for file in files}
    labels = {folder.rsplit("/", 1)[-1] for folder in folders}
    labelled = len(labels) > 1 and len({folder.count("/") for folder in folders}) == 1
    fields = [pa.field(AUDIO, pa.string()), *([pa.field(LABEL, pa.string())] if labelled else [])]
    return Survey(((root, pa.schema(fields)),), sounds=(AUDIO,), options={"metadata": False})


def read(
    file: SourceFile, columns: Columns, place: Place, skip: int, span: tuple[int, int] | None, options: dict[str, Any]
) -> Generator[Piece, None, None]:
    """The file's one row; of a metadata file, its rows, keyed by the path within the dataset."""
    prefix = place.root.rstrip("/") + "/"
    if not options["metadata"]:
        if skip:
            yield Skipped(1)
            return
        key = file.url.removeprefix(prefix)
        folder = pa.array([file.url.rsplit("/", 2)[-2]], pa.string())
        arrays = [folder for _ in columns.kept]
        yield Found(key, Audio(None, file.url), columns.batch(arrays, 1))
        return
    inner = file.url.rsplit("/", 1)[0].removeprefix(prefix.rstrip("/")).strip("/")
    for piece in manifest.read(file, columns, place, skip, span, options):
        if isinstance(piece, Found) and columns.id is None and piece.key is not None and inner:
            piece = replace(piece, key=f"{inner}/{piece.key}")
        yield piece
