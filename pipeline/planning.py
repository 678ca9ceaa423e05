"""From the files of a dataset to shards: one big file each, small files together, huge ones split by row group or rows.

Reads footers and headers only where sizes alone don't decide. What the files are is left to `resolution` and `formats`.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from pipeline.dataset_files import in_threads, is_url
from pipeline.formats import archive, arrow, folder, manifest, parquet, webdataset
from pipeline.places import Place
from pipeline.records import Shard, SourceFile

MB = 1 << 20
SPLIT_BYTES = 1024 * MB  # a file beyond this is split,
PART_BYTES = 512 * MB  # into parts of about this
GROUP_BYTES = 64 * MB  # small container files are put together up to this,
GROUP_SHARDS = 1000  # and only where they'd make more shards than this
CLIP_BYTES = (8 * MB, 256 * MB)  # least and most for recordings put together, by
CLIP_SHARDS = 32  # the number of shards aimed at,
CLIPS = 256  # and never more recordings than this
PATH_ROWS = (64, 1024)  # least and most rows of a shard where rows are paths, by
PATH_SHARDS = 1000  # the number of shards aimed at
FOOTERS_READ = 256  # files whose rows are counted though nothing asks for it
STATS_TAKEN = 100_000  # audio files beside a table that are looked at, and later compared


@dataclass(frozen=True, slots=True)
class Part:
    """A file, or some rows or row groups of it, that a shard may hold."""

    file: SourceFile
    num_rows: int | None = None
    num_bytes: int | None = None
    row_groups: tuple[int, int] | None = None
    rows: tuple[int, int] | None = None


def whole(file: SourceFile, num_rows: int | None = None) -> Part:
    return Part(file, num_rows, file.size)


def grouped(parts: list[Part], split: str, most_bytes: int, most_files: int) -> Iterator[Shard]:
    """Neighbouring whole files together, in order; what is only a part of a file stands alone. Not numbered yet."""
    pending: list[Part] = []
    total = 0
    for part in parts:
        size = part.num_bytes or 0
        alone = part.row_groups is not None or part.rows is not None
        if pending and (alone or total + size > most_bytes or len(pending) >= most_files):
            yield _shard(pending, split)
            pending, total = [], 0
        pending.append(part)
        total += size
        if alone:
            yield _shard(pending, split)
            pending, total = [], 0
    if pending:
        yield _shard(pending, split)


def _shard(parts: list[Part], split: str) -> Shard:
    rows = [part.num_rows for part in parts]
    sizes = [part.num_bytes for part in parts]
    return Shard(
        index=-1,
        split=split,
        files=tuple(part.file for part in parts),
        row_groups=parts[0].row_groups,
        rows=parts[0].rows,
        num_rows=None if None in rows else sum(row for row in rows if row is not None),
        num_bytes=None if None in sizes else sum(size for size in sizes if size is not None),
    )


def clip_shards(files: list[SourceFile], split: str) -> Iterator[Shard]:
    """Shards of recordings that are a file each."""
    total = sum(file.size or 0 for file in files)
    most = min(max(total // CLIP_SHARDS, CLIP_BYTES[0]), CLIP_BYTES[1])
    return grouped([whole(file, 1) for file in files], split, most, CLIPS)


def container_shards(parts: list[Part], split: str) -> Iterator[Shard]:
    """Shards of files that hold many recordings each."""
    total = sum(part.num_bytes or 0 for part in parts)
    return grouped(parts, split, min(total // GROUP_SHARDS, GROUP_BYTES), len(parts))


def by_groups(file: SourceFile, groups: list[tuple[int, int]]) -> list[Part]:
    """A huge parquet file in runs of row groups; groups: (rows, bytes) of each."""
    parts: list[Part] = []
    start = rows = size = 0
    for number, (group_rows, group_bytes) in enumerate(groups):
        if number > start and size + group_bytes > PART_BYTES:
            parts.append(Part(file, rows, size, (start, number)))
            start, rows, size = number, 0, 0
        rows, size = rows + group_rows, size + group_bytes
    return [*parts, Part(file, rows, size, (start, len(groups)))]


def by_rows(file: SourceFile, num_rows: int, parts: int) -> list[Part]:
    """A huge file in parts of about equally many rows."""
    edges = [round(i * num_rows / parts) for i in range(parts + 1)]
    return [
        Part(file, stop - start, (file.size or 0) * (stop - start) // max(num_rows, 1), rows=(start, stop))
        for start, stop in pairwise(edges)
        if stop > start
    ]


def exact_shards(parts: Iterator[Part], split: str, rows_per_shard: int) -> Iterator[Shard]:
    """Shards of exactly so many rows (the last may have fewer), across files where need be. Parts know their rows."""
    pending: list[Part] = []
    start = held = 0  # rows passed over in the first pending file; rows pending after them
    for part in parts:
        if not part.num_rows:
            continue
        pending.append(part)
        held += part.num_rows
        while held >= rows_per_shard:
            yield _span(pending, split, start, rows_per_shard)
            start, held = start + rows_per_shard, held - rows_per_shard
            while pending and (pending[0].num_rows or 0) <= start:
                start -= pending.pop(0).num_rows or 0
    if held:
        yield _span(pending, split, start, held)


def _span(parts: list[Part], split: str, start: int, rows: int) -> Shard:
    total = sum(part.num_rows or 0 for part in parts)
    size = sum(part.num_bytes or 0 for part in parts)
    span = None if (start, rows) == (0, total) else (start, start + rows)
    files = tuple(part.file for part in parts)
    return Shard(-1, split, files, rows=span, num_rows=rows, num_bytes=size * rows // max(total, 1))


def path_rows(num_rows: int) -> int:
    """Rows of a shard where each row is the path of a recording."""
    return min(max(num_rows // PATH_SHARDS, PATH_ROWS[0]), PATH_ROWS[1])


def limited(shards: Iterator[Shard], limit: int | None, count: Callable[[Shard, int], int]) -> Iterator[Shard]:
    """The shards of the first `limit` rows; only as many are looked at as that takes. count: rows, up to a bound."""
    left = limit
    for shard in shards:
        if left is None:
            yield shard
            continue
        if left <= 0:
            return
        rows = shard.num_rows if shard.num_rows is not None else count(shard, left)
        if rows > left or (shard.num_rows is None and rows == left):
            yield _cut(shard, left, rows)
            return
        yield replace(shard, num_rows=rows)
        left -= rows


def _cut(shard: Shard, rows: int, of: int) -> Shard:
    start = shard.rows[0] if shard.rows is not None else 0
    size = None if shard.num_bytes is None else shard.num_bytes * rows // max(of, 1)
    return replace(shard, rows=(start, start + rows), num_rows=rows, num_bytes=size)


def numbered(shards: Iterator[Shard]) -> list[Shard]:
    return [replace(shard, index=index) for index, shard in enumerate(shards)]


def with_audio_files(shard: Shard, paths: list[str], known: dict[str, SourceFile]) -> Shard:
    """A shard of table rows, with the local audio files that the rows name, so that a change of one is noticed."""
    files = []
    for path in dict.fromkeys(paths):
        found = known.get(path)
        if found is None and not is_url(path):
            try:
                facts = os.stat(path)
            except (OSError, ValueError):
                continue  # gone: a row of its own says so
            found = SourceFile(path, facts.st_size, str(facts.st_mtime_ns))
        if found is not None:
            files.append(found)
    return replace(shard, files=(*shard.files, *files), num_bytes=sum(file.size or 0 for file in files))


def counted(files: list[SourceFile], count: Callable[[SourceFile], int | None]) -> list[Part]:
    """The files with their rows, asked for in threads. A file whose rows can't be known counts as one: it will fail."""
    rows = in_threads(count, files, bool(files) and is_url(files[0].url))
    return [whole(file, _or_one(n)) for file, n in zip(files, rows, strict=True)]


def _or_one(rows: int | None) -> int:
    return 1 if rows is None else rows


class Layout:
    """How the files of a dataset become shards, for one builder and its options."""

    def __init__(self, builder: str, root: str, sound: str, options: dict[str, Any], rows_per_shard: int | None):
        self._builder = builder
        self._place = Place(root)
        self._sound = sound  # the audio column
        self._options = options
        self._rows_per_shard = rows_per_shard

    def shards(self, split: str, files: list[SourceFile], eager: bool) -> Iterator[Shard]:
        """The shards of a split, not numbered. eager: all of them will be wanted, so files are asked in threads."""
        if self._builder in ("json", "csv"):
            yield from self._table_shards(split, files, {})
        elif self._builder == "audiofolder" and self._options["metadata"]:
            tables = [file for file in files if folder.is_metadata(file.url)]
            yield from self._table_shards(split, tables, {file.url: file for file in files})
        elif self._builder == "audiofolder":
            if self._rows_per_shard is None:
                yield from clip_shards(files, split)
            else:
                yield from exact_shards((whole(file, 1) for file in files), split, self._rows_per_shard)
        else:
            yield from self._container_shards(split, files, eager)

    def _container_shards(self, split: str, files: list[SourceFile], eager: bool) -> Iterator[Shard]:
        if not any(self._module.holds_sound(file, self._sound) for file in files[:1]):
            parts = counted(files, self._module.count)
            rows = self._rows_per_shard or path_rows(sum(part.num_rows or 0 for part in parts))
            yield from exact_shards(iter(parts), split, rows)
        elif self._rows_per_shard is not None:
            count = self._module.count
            parts = iter(counted(files, count)) if eager else (counted([file], count)[0] for file in files)
            yield from exact_shards(parts, split, self._rows_per_shard)
        else:
            huge = [file for file in files if (file.size or 0) > SPLIT_BYTES]
            split_up = dict(zip(huge, in_threads(self._split, huge, not self._place.local), strict=True))
            small = [file for file in files if file not in split_up]
            rows = {}
            if self._builder == "parquet" and len(small) <= FOOTERS_READ:
                rows = {part.file: part.num_rows for part in counted(small, parquet.count)}
            parts = [part for file in files for part in split_up.get(file, [whole(file, rows.get(file))])]
            yield from container_shards(parts, split)

    @property
    def _module(self) -> Any:
        return {"parquet": parquet, "arrow": arrow, "webdataset": webdataset, "zip": archive}[self._builder]

    def _split(self, file: SourceFile) -> list[Part]:
        """A huge file in parts; whole where that would mean to read it from afar."""
        if self._builder == "parquet":
            groups = parquet.groups(file)
            return by_groups(file, groups) if groups else [whole(file)]
        rows = self._module.count(file) if self._place.local else None
        return by_rows(file, rows, -(-(file.size or 0) // PART_BYTES)) if rows else [whole(file)]

    def _table_shards(self, split: str, tables: list[SourceFile], known: dict[str, SourceFile]) -> Iterator[Shard]:
        loaded = [(file, manifest.load_as(file, self._options).table) for file in tables]
        total = sum(table.num_rows for _, table in loaded)
        rows = self._rows_per_shard or path_rows(total)
        for file, table in loaded:
            names = table[self._sound] if self._place.local and total <= STATS_TAKEN else None
            for shard in exact_shards(iter([whole(file, table.num_rows)]), split, rows):
                if names is None:
                    yield replace(shard, num_bytes=None)
                    continue
                start = shard.rows[0] if shard.rows is not None else 0
                yield with_audio_files(shard, self._paths(names.slice(start, shard.num_rows), file), known)

    def _paths(self, names: Any, file: SourceFile) -> list[str]:
        """Where the rows of a table lead, but those that lead nowhere."""
        paths = []
        for name in names.to_pylist():
            try:
                if isinstance(name, str) and name:
                    paths.append(self._place.locate(name, file.url.rsplit("/", 1)[0]))
            except ValueError:
                continue
        return paths

    def count(self, shard: Shard, at_most: int) -> int:
        """Rows of a shard that doesn't know them; no more than `at_most` are looked for where that costs."""
        rows = 0
        for file in shard.files:
            found = self._module.count(file, at_most - rows)
            rows += 1 if found is None else found
            if rows >= at_most:
                break
        return rows
