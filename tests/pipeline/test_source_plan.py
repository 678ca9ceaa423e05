"""How files become shards: each row once and in order, whatever the sizes, limits and numbers asked for."""

from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import planning
from pipeline.records import Shard, SourceFile
from tests.pipeline.source_data import (
    audio_table,
    good_rows,
    source,
    starts_anywhere,
    write_files,
    write_parquet,
    write_tar,
)

MB = planning.MB


def files(sizes: list[int]) -> list[SourceFile]:
    return [SourceFile(f"/d/{i:06d}", size) for i, size in enumerate(sizes)]


def in_order(shards: list[Shard], expected: list[SourceFile]) -> bool:
    return [file for shard in shards for file in shard.files] == expected


def test_a_hundred_thousand_small_recordings_make_some_hundred_shards():
    given_files = files([50_000] * 100_000)
    shards = list(planning.clip_shards(given_files, "train"))
    assert 300 <= len(shards) <= 3000
    assert in_order(shards, given_files)
    assert {shard.num_rows for shard in shards[:-1]} == {256}


def test_a_few_recordings_are_few_shards():
    assert len(list(planning.clip_shards(files([100_000] * 20), "train"))) == 1
    assert len(list(planning.clip_shards(files([100 * MB] * 20), "train"))) == 20


def test_container_files_stand_alone_until_they_are_many():
    few = [planning.whole(file) for file in files([2000, 3000, 1000])]
    assert len(list(planning.container_shards(few, "train"))) == 3
    many = [planning.whole(file) for file in files([MB] * 10_000)]
    assert 900 <= len(list(planning.container_shards(many, "train"))) <= 1200
    big = [planning.whole(file) for file in files([400 * MB] * 50)]
    assert len(list(planning.container_shards(big, "train"))) == 50


def test_a_huge_parquet_is_split_by_row_groups():
    (file,) = files([50_000 * MB])
    parts = planning.by_groups(file, [(100, 100 * MB)] * 500)
    assert [part.row_groups for part in parts[:2]] == [(0, 5), (5, 10)]
    assert sum(part.num_rows or 0 for part in parts) == 50_000
    assert all(a.row_groups and b.row_groups and a.row_groups[1] == b.row_groups[0] for a, b in pairwise(parts))
    shards = list(planning.container_shards([planning.whole(file), *parts], "train"))
    assert len(shards) == 101


@given(
    counts=st.lists(st.integers(0, 9), max_size=8),
    rows_per_shard=st.integers(1, 12),
    limit=st.none() | st.integers(1, 40),
)
def test_exact_shards_hold_each_row_once(counts: list[int], rows_per_shard: int, limit: int | None):
    parts = [planning.whole(file, n) for file, n in zip(files([10] * len(counts)), counts, strict=True)]
    shards = planning.exact_shards(iter(parts), "train", rows_per_shard)
    plan = planning.numbered(planning.limited(shards, limit, lambda shard, most: 0))
    rows_in = {part.file.url: part.num_rows or 0 for part in parts}
    everything = [(part.file.url, row) for part in parts for row in range(part.num_rows or 0)]
    seen = []
    for shard in plan:
        rows = [(file.url, row) for file in shard.files for row in range(rows_in[file.url])]
        seen += rows[slice(*shard.rows)] if shard.rows else rows
    assert seen == everything[:limit]
    assert [shard.num_rows for shard in plan[:-1]] == [rows_per_shard] * (len(plan) - 1)
    assert [shard.index for shard in plan] == list(range(len(plan)))


@pytest.mark.parametrize("kind", ["parquet", "tar", "folder", "manifest"])
@pytest.mark.parametrize(
    ("rows_per_shard", "limit"), [(None, None), (2, None), (3, 7), (None, 5), (None, 100), (100, 1)]
)
def test_any_plan_reads_the_first_rows_in_order(tmp_path: Path, kind: str, rows_per_shard, limit):
    names = [f"{i:02d}" for i in range(11)]
    if kind == "parquet":
        for i, part in enumerate((names[:4], [], names[4:9], names[9:])):
            write_parquet(tmp_path / f"{i}.parquet", audio_table(part, n=pa.array(part, pa.string())), rows=2)
    elif kind == "tar":
        for i, part in enumerate((names[:4], names[4:9], names[9:])):
            write_tar(tmp_path / f"{i}.tar", [(f"{name}.wav", b"x") for name in part])
    else:
        write_files(tmp_path / "data", [f"{name}.wav" for name in names])
        if kind == "manifest":
            lines = "".join(f"{name},data/{name}.wav\n" for name in names)
            (tmp_path / "m.csv").write_text("id,audio\n" + lines)
    path = tmp_path / "m.csv" if kind == "manifest" else tmp_path
    ids = "id" if kind in ("parquet", "manifest") else None
    src = source(path, rows_per_shard=rows_per_shard, limit=limit, id_column=ids)
    keys = [row.key.removeprefix("data/").removesuffix(".wav") for row in good_rows(src)]
    assert keys == names[:limit]
    again = source(path, rows_per_shard=rows_per_shard, limit=limit, id_column=ids)
    assert again.plan() == src.plan()
    if limit is not None:
        assert src.num_rows == len(keys)
    for shard in src.plan():
        starts_anywhere(src, shard)


def test_a_limit_looks_at_no_more_files_than_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for i in range(5):
        write_tar(tmp_path / f"{i}.tar", [(f"{j}.wav", b"x") for j in range(4)])
    src = source(tmp_path, limit=6)
    counted = []
    count = planning.webdataset.count

    def spy(file: SourceFile, at_most: int | None = None) -> int | None:
        counted.append(Path(file.url).name)
        return count(file, at_most)

    monkeypatch.setattr("pipeline.formats.webdataset.count", spy)
    assert [shard.num_rows for shard in src.plan()] == [4, 2]
    assert counted == ["0.tar", "1.tar"]


def test_huge_files_of_any_container_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(planning, "SPLIT_BYTES", 2000)
    monkeypatch.setattr(planning, "PART_BYTES", 1000)
    ids = [f"{i:02d}" for i in range(20)]
    write_parquet(tmp_path / "p" / "a.parquet", audio_table(ids), rows=3, compression="none")
    write_tar(tmp_path / "t" / "a.tar", [(f"{name}.wav", b"x") for name in ids])
    for folder, spec in (("p", {"id_column": "id"}), ("t", {})):
        src = source(tmp_path / folder, **spec)
        assert len(src.plan()) > 4
        assert [row.key for row in good_rows(src)] == ids
        assert src.num_rows == 20
        for shard in src.plan():
            starts_anywhere(src, shard)


def test_rows_that_are_paths_are_shared_out_by_rows(tmp_path: Path):
    paths = [f"{i}.wav" for i in range(200)]
    write_parquet(tmp_path / "a.parquet", pa.table({"audio": paths}), rows=50)
    src = source(tmp_path)
    assert [shard.num_rows for shard in src.plan()] == [64, 64, 64, 8]
    assert [row.key for row in good_rows(src)] == paths
