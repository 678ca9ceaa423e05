"""Zip archives of audio files: each file in one is a row, in the order of their names.

Read with zipfile and not through `datasets`, whose Audio feature asks for torchcodec on this path.
"""

import zipfile
import zlib
from collections.abc import Generator
from typing import Any

import pyarrow as pa

from pipeline import endings
from pipeline.columns import Columns, Survey
from pipeline.dataset_files import describe, open_file
from pipeline.endings import METADATA_NAMES, base, ending
from pipeline.errors import SourceError
from pipeline.formats.pieces import Found, Lost, Piece, Skipped
from pipeline.places import Place
from pipeline.records import Audio, SourceFile

AUDIO = "audio"
LARGE_BYTES = 256 << 20  # of a file once unpacked: one this large
LARGE_RATIO = 200  # that was packed this well isn't sound but a bomb
ERRORS = (zipfile.BadZipFile, OSError, ValueError, EOFError, NotImplementedError, RuntimeError, zlib.error)


def survey(files: list[SourceFile]) -> Survey:
    """SourceError where the first archive holds no audio, or metadata, which isn't read from archives."""
    found = names(files[0])
    if isinstance(found, str):
        raise SourceError(f"{files[0].url}: isn't a zip archive that can be read: {found}")
    if any(base(name) in METADATA_NAMES for name in found):
        raise SourceError(f"{files[0].url}: holds a metadata file; unpack the archive, so that it can be read")
    if not _sounds(found):
        raise SourceError(f"{files[0].url}: holds no audio files")
    schema = pa.schema([pa.field(AUDIO, pa.string())])
    return Survey(((files[0].url, schema),), sounds=(AUDIO,))


def names(file: SourceFile) -> list[str] | str:
    """The names in an archive, or what is wrong with it."""
    with open_file(file.url) as stream:
        try:
            with zipfile.ZipFile(stream) as archive:
                return archive.namelist()
        except ERRORS as error:
            stream.check()
            return describe(error)


def _sounds(found: list[str]) -> list[str]:
    """Audio files, sorted; not hidden ones, nor those that macOS adds."""
    sounds = endings.AUDIO | endings.VIDEO
    hidden = (".", "__")
    return sorted(
        name
        for name in found
        if ending(name) in sounds and not any(part.startswith(hidden) for part in name.split("/"))
    )


def count(file: SourceFile, at_most: int | None = None) -> int | None:
    found = names(file)
    return None if isinstance(found, str) else len(_sounds(found))


def holds_sound(file: SourceFile, column: str) -> bool:
    return True


def read(
    file: SourceFile, columns: Columns, place: Place, skip: int, span: tuple[int, int] | None, options: dict[str, Any]
) -> Generator[Piece, None, None]:
    """The rows after the first `skip`. A file that can't be unpacked fails alone."""
    with open_file(file.url) as stream:
        try:
            archive = zipfile.ZipFile(stream)
        except ERRORS as error:
            stream.check()
            yield Lost(1, f"{file.url} isn't a zip archive that can be read: {describe(error)}")
            return
        with archive:
            sounds = _sounds(archive.namelist())
            if skip:
                yield Skipped(min(skip, len(sounds)))
            for name in sounds[skip:]:
                data = problem = None
                try:
                    data = _unpack(archive, name)
                except ERRORS as error:
                    stream.check()
                    problem = f"{name} can't be unpacked from {file.url}: {describe(error)}"
                yield Found(_key(name), Audio(data, name), columns.batch([], 1), problem)


def _key(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()


def _unpack(archive: zipfile.ZipFile, name: str) -> bytes:
    info = archive.getinfo(name)
    if info.file_size > max(LARGE_BYTES, LARGE_RATIO * info.compress_size):
        raise ValueError(f"it claims {info.file_size} bytes in {info.compress_size}")
    return archive.read(info)
