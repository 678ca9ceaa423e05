"""A walk over the members of a tar, front to back, that tells a cut or damaged archive from one that ends.

Python's tarfile takes some damaged headers for the end, and reads name records of any size into memory; its parser of
single headers is used here. What the members mean is left to `webdataset`.
"""

import bz2
import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.dataset_files import SourceStream, describe

BLOCK = 512
NAME_RECORD_LIMIT = 1 << 20  # bytes of a long name or of pax records
READ_BUFFER = 1 << 16
COPY_BYTES = 1 << 20
COMPRESSED: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": gzip.GzipFile,
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
}
READ_ERRORS = (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError)


class Damaged(Exception):
    """The archive ends early or isn't a tar from here on."""


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    size: int  # bytes
    data: bytes | None  # None: not asked for


def open_tar(stream: SourceStream) -> tuple[Any, bool]:
    """The tar's bytes, and whether they are compressed."""
    head = stream.read(8)
    stream.seek(0)
    for magic, reader in COMPRESSED.items():
        if head.startswith(magic):
            return (gzip.GzipFile(fileobj=stream) if reader is gzip.GzipFile else reader(stream)), True
    return io.BufferedReader(stream, READ_BUFFER), False


def walk(stream: SourceStream, size: int | None, wanted: Callable[[str], bool]) -> Iterator[Member]:
    """The regular files of a tar, with the data of those wanted.

    size: bytes of the archive, where known: a member that claims to be longer is damage, found before it's read.
    Damaged where the archive doesn't end as a tar does; SourceError where disk or network fails.
    """
    try:
        archive, compressed = open_tar(stream)
        yield from _walk(archive, None if compressed else size, wanted)
    except READ_ERRORS as error:
        stream.check()
        raise Damaged(describe(error)) from error


def _walk(archive: Any, size: int | None, wanted: Callable[[str], bool]) -> Iterator[Member]:
    names: dict[str, str] = {}  # of the next member, from records before it
    position = 0
    while True:
        header = archive.read(BLOCK)
        if not header and position:
            return  # between two members, without the mark that ends a tar: nothing tells it from a whole one
        if len(header) < BLOCK:
            raise Damaged(f"it ends at byte {position + len(header)} without the mark that ends a tar")
        if not header.strip(b"\0"):
            return
        position += BLOCK
        try:
            info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise Damaged(f"no tar header at byte {position - BLOCK}: {error}") from error
        length = int(names.pop("size", info.size))
        padded = -(-length // BLOCK) * BLOCK
        if length < 0 or (size is not None and position + length > size):
            raise Damaged(f"the member at byte {position - BLOCK} declares {length} bytes, beyond the end")
        if info.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE):
            names.update(_records(info.type, _take(archive, length, padded)))
        elif info.type == tarfile.GNUTYPE_SPARSE:
            raise Damaged(f"the member at byte {position - BLOCK} is sparse, which isn't read")
        else:
            name = names.pop("path", info.name)
            if info.isreg() and wanted(name):
                yield Member(name, length, _take(archive, length, padded))
            else:
                _pass(archive, padded)
                if info.isreg():
                    yield Member(name, length, None)
            names.clear()
        position += padded


def _take(archive: Any, length: int, padded: int) -> bytes:
    data = archive.read(length)
    if len(data) < length:
        raise Damaged(f"it ends within a member, {length - len(data)} bytes early")
    archive.read(padded - length)
    return data


def _pass(archive: Any, padded: int) -> None:
    if isinstance(archive, io.BufferedReader):
        archive.seek(padded, io.SEEK_CUR)
        return
    while padded:
        data = archive.read(min(padded, COPY_BYTES))
        if not data:
            raise Damaged("it ends within a member")
        padded -= len(data)


def _records(kind: bytes, data: bytes) -> dict[str, str]:
    """What a long name or pax records say of the next member: `path` and `size`."""
    if len(data) > NAME_RECORD_LIMIT:
        raise Damaged(f"a name record of {len(data)} bytes")
    if kind == tarfile.GNUTYPE_LONGNAME:
        return {"path": data.rstrip(b"\0").decode("utf-8", "surrogateescape")}
    if kind != tarfile.XHDTYPE:
        return {}
    found = {}
    while data.strip(b"\0"):
        digits, _, _ = data.partition(b" ")
        if not digits.isdigit() or not 0 < int(digits) <= len(data):
            raise Damaged("a pax record has no length")
        record, data = data[: int(digits)], data[int(digits) :]
        key, _, value = record[len(digits) + 1 :].rstrip(b"\n").partition(b"=")
        if key in (b"path", b"size"):
            found[key.decode()] = value.decode("utf-8", "surrogateescape")
    return found
