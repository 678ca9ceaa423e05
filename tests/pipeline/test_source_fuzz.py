"""Damaged containers of every kind: refused in one line or read to their end, never a crash, never a row uncounted."""

import gzip
import random
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.errors import SourceError
from tests.pipeline.source_data import audio_table, source, write_parquet, write_tar

ROUNDS = 60


def contents(folder: Path) -> dict[str, bytes]:
    """A whole file of each kind."""
    table = audio_table([str(i) for i in range(12)], words=pa.array([[{"word": "hm"}]] * 12))
    members = [(f"{i}.{kind}", data) for i in range(6) for kind, data in (("wav", b"RIFF" * 50), ("json", b'{"n": 1}'))]
    tar = write_tar(folder / "x.tar", members).read_bytes()
    with pa.ipc.new_stream(str(folder / "x.arrow"), table.schema) as out:
        for batch in table.to_batches(4):
            out.write_batch(batch)
    with zipfile.ZipFile(folder / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    lines = [b'{"audio": "a/%d.wav", "n": {"a": %d}}\n' % (i, i) for i in range(20)]
    return {
        "parquet": write_parquet(folder / "x.parquet", table).read_bytes(),
        "tar": tar,
        "tar.gz": gzip.compress(tar),
        "arrow": (folder / "x.arrow").read_bytes(),
        "zip": (folder / "x.zip").read_bytes(),
        "jsonl": b"".join(lines),
        "csv": b"audio,text\n" + b"".join(b'a/%d.wav,"x %d"\n' % (i, i) for i in range(20)),
    }


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The data with bytes changed, cut out, or cut off."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 3, 10])):
        place = rng.randrange(len(changed))
        match rng.randrange(4):
            case 0 | 1:
                changed[place] = rng.randrange(256)
            case 2:
                del changed[place : place + rng.randrange(1, 200)]
            case 3:
                changed[place:] = changed[place : rng.randrange(place, len(changed) + 1)]
        changed = changed or bytearray(b"x")
    return bytes(changed)


@pytest.mark.parametrize("kind", ["parquet", "tar", "tar.gz", "arrow", "zip", "jsonl", "csv"])
def test_damage_is_told_in_one_line_or_costs_rows(tmp_path: Path, kind: str):
    (tmp_path / "whole").mkdir()
    whole = contents(tmp_path / "whole")[kind]
    rng = random.Random(kind)
    read = 0
    for _ in range(ROUNDS):
        path = tmp_path / f"x.{kind}"
        path.write_bytes(mutated(whole, rng))
        try:
            src = source(path)
            for shard in src.plan():
                rows = list(src.reader.rows(shard))
                assert [row.row for row in rows] == list(range(len(rows)))
                start = rng.randrange(len(rows) + 1)
                assert [row.row for row in src.reader.rows(shard, start)] == list(range(start, len(rows)))
                read += len(rows)
        except SourceError as error:
            assert "\n" not in str(error)
    assert read
