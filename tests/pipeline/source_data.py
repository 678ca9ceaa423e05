"""Small datasets for the tests of the source, made where a test wants them."""

import io
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.records import FailedRow, Row, Shard
from pipeline.source import Source, open_source
from pipeline.spec import InputSpec

AUDIO_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def sound(n: int) -> bytes:
    """Bytes that stand for a recording: the source doesn't look into them."""
    return b"RIFF%04d" % n + bytes(200)


def audio_table(ids: list[Any], **columns: Any) -> pa.Table:
    values = [{"bytes": sound(i), "path": f"{i}.wav"} for i in range(len(ids))]
    return pa.table({"id": pa.array(ids), "audio": pa.array(values, AUDIO_TYPE), **columns})


def write_parquet(path: Path, table: pa.Table, rows: int = 4, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=rows, **options)
    return path


def write_tar(path: Path, members: list[tuple[str, bytes]], format: int = tarfile.USTAR_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=format) as out:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return path


def write_files(folder: Path, names: list[str]) -> None:
    for i, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(sound(i))


def source(path: Path | str, **spec: Any) -> Source:
    return open_source(InputSpec(path=str(path), **spec))


def rows_of(src: Source) -> list[Row | FailedRow]:
    return [row for shard in src.plan() for row in src.reader.rows(shard)]


def good_rows(src: Source) -> list[Row]:
    """Every row, none of them failed."""
    rows = rows_of(src)
    assert not [row for row in rows if isinstance(row, FailedRow)]
    return [row for row in rows if isinstance(row, Row)]


def audio_bytes(row: Row | FailedRow) -> bytes | None:
    """The row's audio, from the row or from the file that it names."""
    assert isinstance(row, Row)
    if row.audio is None:
        return None
    if row.audio.data is not None:
        return row.audio.data
    assert row.audio.path is not None
    return Path(row.audio.path).read_bytes()


def kept(src: Source) -> pa.Table:
    """The kept columns of all rows."""
    return pa.Table.from_batches([row.kept for row in good_rows(src)], src.kept_schema)


def same_row(a: Row | FailedRow, b: Row | FailedRow) -> bool:
    if isinstance(a, FailedRow) or isinstance(b, FailedRow):
        return a == b
    return (a.shard, a.row, a.key, a.audio) == (b.shard, b.row, b.key, b.audio) and a.kept.equals(b.kept)


def starts_anywhere(src: Source, shard: Shard) -> None:
    """Asserts that reading from any row on gives what reading it all gives from there."""
    whole = list(src.reader.rows(shard))
    assert [row.row for row in whole] == list(range(len(whole)))
    for start in range(len(whole) + 2):
        part = list(src.reader.rows(shard, start))
        assert len(part) == len(whole[start:])
        assert all(same_row(a, b) for a, b in zip(part, whole[start:], strict=True))
