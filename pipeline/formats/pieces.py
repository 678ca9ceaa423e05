"""What a format's reader yields, and how a batch of columns becomes rows; which columns is left to `columns`."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.columns import Columns
from pipeline.places import Place
from pipeline.records import Audio

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """A row. `problem` says why it can't become codes, where that is known before its audio is looked at."""

    key: str | None
    audio: Audio | None
    kept: pa.RecordBatch
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """Rows that can't be read; one for "the rest", where their number isn't known."""

    count: int
    message: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """Rows passed over, as asked."""

    count: int


Piece = Found | Lost | Skipped


def found_rows(batch: pa.RecordBatch, columns: Columns, place: Place, folder: str, url: str) -> Iterator[Found]:
    """The rows of a batch that holds the audio, id and kept columns under their source names.

    folder: what relative paths of audio start from, before the dataset's own folder.
    """
    kept = columns.keep(batch, url)
    sound = batch.column(columns.audio[0])
    ids = batch.column(columns.id) if columns.id is not None else None
    for i in range(batch.num_rows):
        key = name = audio = problem = None
        try:
            data, name = _audio_value(sound[i])
            if ids is not None:
                key = key_text(ids[i].as_py())
            if data is not None:
                audio = Audio(data, name)
            elif name:
                audio = Audio(None, place.locate(name, folder))
        except (ValueError, TypeError) as error:  # text that isn't UTF-8, or a path that leads elsewhere
            problem = " ".join(str(error).split())
        yield Found(key if columns.id is not None else (name or None), audio, kept.slice(i, 1), problem)


def _audio_value(value: pa.Scalar) -> tuple[bytes | None, str | None]:
    """Bytes and path of an audio value, be it a struct of both, plain bytes, or a path."""
    if not value.is_valid:
        return None, None
    if isinstance(value, pa.StructScalar):
        fields = {field.name for field in value.type}
        data = value["bytes"].as_py() if "bytes" in fields else None
        path = value["path"].as_py() if "path" in fields else None
        if isinstance(data, str):
            raise TypeError("the audio's bytes are text")
        return data, path
    content = value.as_py()
    return (None, content) if isinstance(content, str) else (bytes(content), None)


def key_text(value: Any) -> str | None:
    """An id as text; None where there is none, so that the row's place stands in."""
    if value is None or value == "":
        return None
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
