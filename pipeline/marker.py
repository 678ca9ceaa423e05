"""The commit marker of a shard: what has no marker does not exist. Reads many of them quickly, through an index.

Writing a marker is the last step of `RunDir.publish`; here is what's in one.
"""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.local_storage import LocalStorage
from pipeline.records import ShardResult
from pipeline.storage import Entry, Storage

INDEX = "_state/markers.parquet"  # a cache: believed only where size and version of the marker are still the same
INDEX_SCHEMA = pa.schema([("name", pa.string()), ("size", pa.int64()), ("version", pa.string()), ("json", pa.string())])
NAME = re.compile(r"(\d{5,9})\.json")
FILE = re.compile(r"(data|errors|skipped)/[\w.-]+\.parquet")
READERS = 16  # threads, for stores where a read is a round trip


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file that belongs to the run. `path` is relative to the run directory."""

    path: str
    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Marker:
    """What a shard came to; the fields of `ShardResult`, its files under their final names, and when and by whom."""

    shard: int
    attempt: int
    rows_read: int
    encoded: int
    failed: int
    skipped: int
    clips: int
    frames: int
    audio_seconds: float
    files: tuple[PublishedFile, ...]
    failures: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0  # wall time of the attempt
    published: float = 0.0  # seconds since 1970
    worker: str = ""  # the actor that did it, where the driver says

    def file(self, folder: str) -> PublishedFile | None:
        """Its file in `data`, `errors` or `skipped`, if it has one there."""
        return next((file for file in self.files if file.path.startswith(folder + "/")), None)

    def to_json(self) -> bytes:
        fields = {name: getattr(self, name) for name in self.__slots__}
        fields["files"] = [{"path": file.path, "bytes": file.num_bytes, "sha256": file.sha256} for file in self.files]
        return json.dumps(fields, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: str | bytes) -> "Marker":
        """ValueError where it isn't one: cut short, fields missing, or a file that can't be a run's."""
        try:
            fields: dict[str, Any] = json.loads(data)
            files = tuple(PublishedFile(file["path"], file["bytes"], file["sha256"]) for file in fields.pop("files"))
            marker = cls(files=files, **fields)
        except (KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
            raise ValueError(f"not a marker: {error}") from error
        if not all(FILE.fullmatch(file.path) for file in files) or marker.file("data") is None:
            raise ValueError("not a marker: it names files that no run has")
        return marker

    @classmethod
    def of(cls, result: ShardResult, published: float, worker: str) -> "Marker":
        shared = {name: getattr(result, name) for name in ShardResult.__slots__ if name != "files"}
        files = tuple(PublishedFile(file.final, file.num_bytes, file.sha256) for file in result.files)
        return cls(files=files, published=published, worker=worker, **shared)


def marker_name(shard: int) -> str:
    return f"_state/{shard:05d}.json"


def read_markers(storage: Storage, listing: list[Entry]) -> tuple[dict[int, Marker], list[int]]:
    """The markers among the entries of `_state`, and the shards whose marker can't be understood."""
    found = {int(match[1]): entry for entry in listing if (match := NAME.fullmatch(entry.name))}
    texts = _read_texts(storage, found)
    markers, damaged = {}, []
    for shard, text in texts.items():
        if text is None:  # removed since it was listed
            continue
        try:
            marker = Marker.from_json(text)
            if marker.shard != shard:
                raise ValueError("not this shard's marker")
            markers[shard] = marker
        except ValueError:
            damaged.append(shard)
    return markers, damaged


def write_index(storage: Storage, listing: list[Entry]) -> None:
    """Remember the markers in one file, for those who list a run of many shards."""
    found = {int(match[1]): entry for entry in listing if (match := NAME.fullmatch(entry.name))}
    texts = {shard: text for shard, text in _read_texts(storage, found).items() if text is not None}
    columns = {
        "name": [found[shard].name for shard in texts],
        "size": [found[shard].size for shard in texts],
        "version": [found[shard].version for shard in texts],
        "json": [text.decode("utf-8", "replace") for text in texts.values()],
    }
    with storage.open_staged(INDEX) as sink:
        pq.write_table(pa.table(columns, INDEX_SCHEMA), sink, compression="zstd")


def _read_texts(storage: Storage, entries: dict[int, Entry]) -> dict[int, bytes | None]:
    known = _read_index(storage)
    texts: dict[int, bytes | None] = {}
    unknown = []
    for shard, entry in sorted(entries.items()):
        remembered = known.get(entry.name)
        if remembered is not None and remembered[:2] == (entry.size, entry.version):
            texts[shard] = remembered[2].encode()
        else:
            unknown.append(shard)

    def read(shard: int) -> bytes | None:
        try:
            return storage.read_bytes(marker_name(shard))
        except FileNotFoundError:
            return None

    if isinstance(storage, LocalStorage) or len(unknown) < 2:  # local reads are too short for threads to help
        texts.update((shard, read(shard)) for shard in unknown)
    else:
        with ThreadPoolExecutor(READERS) as pool:
            texts.update(zip(unknown, pool.map(read, unknown), strict=True))
    return texts


def _read_index(storage: Storage) -> dict[str, tuple[int, str, str]]:
    try:
        table = pq.read_table(pa.BufferReader(storage.read_bytes(INDEX)), schema=INDEX_SCHEMA)
    except (FileNotFoundError, pa.ArrowException, OSError):  # a cache: without it the markers are read one by one
        return {}
    columns = [table.column(name).to_pylist() for name in INDEX_SCHEMA.names]
    return {name: (size, version, text) for name, size, version, text in zip(*columns, strict=True)}
