"""Reads the markers of a run. Each is a small file, and a run may have 100,000, so the driver also keeps them in one.

The index is a cache. A line of it is believed only where the marker's size and version are still what they were.
"""

import gc
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.local_storage import LocalStorage
from pipeline.marker import Marker, PublishedFile, marker_name
from pipeline.storage import Entry, Storage

INDEX = "_state/markers.parquet"
NAME = re.compile(r"\d{5,9}\.json")
BATCH = 10_000  # markers made of columns, or put into them, at a time
READERS = 16  # threads, for stores where a read is a round trip
SCALARS = {
    "shard": pa.int32(),
    "attempt": pa.int32(),
    "rows_read": pa.int64(),
    "encoded": pa.int64(),
    "failed": pa.int64(),
    "skipped": pa.int64(),
    "clips": pa.int64(),
    "frames": pa.int64(),
    "audio_seconds": pa.float64(),
    "seconds": pa.float64(),
    "published": pa.float64(),
    "worker": pa.string(),
}
FILES = ("data", "errors", "skipped")
SCHEMA = pa.schema(
    [("size", pa.int64()), ("version", pa.string()), *SCALARS.items(), ("failures", pa.string())]
    + [(f"{folder}_{name}", kind) for folder in FILES for name, kind in (("path", pa.string()), ("bytes", pa.int64()))]
    + [(f"{folder}_sha256", pa.string()) for folder in FILES]
)


def read_markers(storage: Storage, listing: list[Entry]) -> tuple[dict[int, Marker], list[int]]:
    """The markers among the entries of `_state`, by shard, and the shards whose marker can't be understood."""
    found = _marker_entries(listing)
    with _no_collections():
        markers = {
            marker.shard: marker
            for size, version, marker in _read_index(storage)
            if (entry := found.get(marker.shard)) is not None and entry.size == size and entry.version == version
        }
    unknown = sorted(found.keys() - markers.keys())
    fresh, damaged = _read_fresh(storage, unknown)
    markers |= fresh
    return ({shard: markers[shard] for shard in sorted(markers)} if unknown else markers), damaged


def write_index(storage: Storage, listing: list[Entry]) -> None:
    """Remember the markers in one file, for those who read a run of many shards.

    What is remembered already stays columns: markers are made of the new ones alone, so that a driver's memory doesn't
    grow with its run.
    """
    found = _marker_entries(listing)
    index = _index_table(storage)
    pairs = ((shard, (size, version)) for shard, size, version in _versions(index))
    still = [(entry := found.get(shard)) is not None and (entry.size, entry.version) == what for shard, what in pairs]
    index = index.filter(pa.array(still, pa.bool_()))
    unknown = sorted(found.keys() - set(index.column("shard").to_pylist()))
    for start in range(0, len(unknown), BATCH):
        fresh, _ = _read_fresh(storage, unknown[start : start + BATCH])
        index = pa.concat_tables([index, _to_table(fresh, found)])
    with storage.open_staged(INDEX) as sink:
        pq.write_table(index.sort_by("shard"), sink, compression="zstd")


def _to_table(markers: dict[int, Marker], found: dict[int, Entry]) -> pa.Table:
    columns: dict[str, list] = {name: [getattr(marker, name) for marker in markers.values()] for name in SCALARS}
    columns["size"] = [found[shard].size for shard in markers]
    columns["version"] = [found[shard].version for shard in markers]
    columns["failures"] = [json.dumps(marker.failures) if marker.failures else None for marker in markers.values()]
    for folder in FILES:
        files = [marker.file(folder) for marker in markers.values()]
        columns[f"{folder}_path"] = [file and file.path for file in files]
        columns[f"{folder}_bytes"] = [file and file.num_bytes for file in files]
        columns[f"{folder}_sha256"] = [file and file.sha256 for file in files]
    return pa.table(columns, SCHEMA)


def _marker_entries(listing: list[Entry]) -> dict[int, Entry]:
    return {int(entry.name[:-5]): entry for entry in listing if NAME.fullmatch(entry.name)}


@contextmanager
def _no_collections() -> Iterator[None]:
    """Making objects by the 100,000 sets off the garbage collector again and again, for half of the time in all."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _parse(shard: int, data: bytes) -> Marker:
    marker = Marker.from_json(data)
    if marker.shard != shard:
        raise ValueError(f"the marker of shard {marker.shard} under the name of shard {shard}")
    return marker


def _read_fresh(storage: Storage, shards: list[int]) -> tuple[dict[int, Marker], list[int]]:
    """The markers of these shards from their own files, and the shards whose marker can't be understood."""
    markers, damaged = {}, []
    for shard, data in zip(shards, _read_each(storage, shards), strict=True):
        if data is None:  # removed since it was listed
            continue
        try:
            markers[shard] = _parse(shard, data)
        except ValueError:
            damaged.append(shard)
    return markers, damaged


def _read_each(storage: Storage, shards: list[int]) -> Iterator[bytes | None]:
    def read(shard: int) -> bytes | None:
        try:
            return storage.read_bytes(marker_name(shard))
        except FileNotFoundError:
            return None

    if isinstance(storage, LocalStorage) or len(shards) < 2:  # local reads are too short for threads to help
        yield from map(read, shards)
        return
    with ThreadPoolExecutor(READERS) as pool:
        yield from pool.map(read, shards)


def _index_table(storage: Storage) -> pa.Table:
    """The index; empty where there's no good one."""
    try:
        return pq.read_table(pa.BufferReader(storage.read_bytes(INDEX)), schema=SCHEMA)
    except (FileNotFoundError, pa.ArrowException, OSError):
        return SCHEMA.empty_table()


def _versions(index: pa.Table) -> Iterator[tuple[int, int, str]]:
    """Shard, size and version of each remembered marker."""
    for batch in index.to_batches(BATCH):
        yield from zip(*(batch.column(name).to_pylist() for name in ("shard", "size", "version")), strict=True)


def _read_index(storage: Storage) -> Iterator[tuple[int, str, Marker]]:
    """Size and version of each remembered marker's file, and the marker."""
    for batch in _index_table(storage).to_batches(BATCH):
        columns = {name: batch.column(name).to_pylist() for name in SCHEMA.names}
        kinds = zip(*(_files(columns, folder) for folder in FILES), strict=True)
        files = [tuple([file for file in three if file is not None]) for three in kinds]
        failures = [json.loads(text) if text else {} for text in columns["failures"]]
        scalars = zip(*(columns[name] for name in SCALARS), strict=True)
        versions = zip(columns["size"], columns["version"], strict=True)
        for (size, version), values, *rest in zip(versions, scalars, files, failures, strict=True):
            yield size, version, Marker(*values, *rest)


def _files(columns: dict[str, list], folder: str) -> Iterator[PublishedFile | None]:
    for path, num_bytes, sha256 in zip(*(columns[f"{folder}_{x}"] for x in ("path", "bytes", "sha256")), strict=True):
        yield PublishedFile(path, num_bytes, sha256) if path is not None else None
