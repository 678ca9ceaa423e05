"""`read_codes`: which rows come, in what shape, and what is refused."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipeline
from pipeline.codes import read_codes
from pipeline.errors import RunDirError


def codes_of(row: int, k: int = 3) -> np.ndarray:
    return np.random.default_rng(row).integers(0, 2048, (k, 1 + row % 7), np.uint16)


def write(path: Path, first: int, count: int, column: str = "codes", kind: pa.DataType | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = range(first, first + count)
    kind = kind or pa.list_(pa.list_(pa.uint16()))
    table = pa.table(
        {
            "key": [f"key-{row}" for row in rows],
            column: pa.array([codes_of(row).tolist() for row in rows], kind),
            "text": [f"text {row}" for row in rows],
        }
    )
    pq.write_table(table, path, row_group_size=5)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("codes")
    for index, (first, count) in enumerate([(0, 13), (13, 0), (13, 90)]):
        write(folder / f"{index}.parquet", first, count)
    return folder


def test_every_row_comes_in_order_as_codebooks_by_frames(folder):
    rows = list(pipeline.read_codes(str(folder)))
    assert [row.key for row in rows] == [f"key-{row}" for row in range(103)]
    for number, row in enumerate(rows):
        assert row.codes.dtype == np.uint16 and row.codes.flags.writeable and row.columns == {}
        np.testing.assert_array_equal(row.codes, codes_of(number))


def test_columns_asked_for_come_with_each_row(folder):
    assert next(read_codes(str(folder), columns=["text"])).columns == {"text": "text 0"}


@given(st.integers(0, 120), st.one_of(st.none(), st.integers(0, 120)), st.integers(1, 40))
def test_a_slice_of_rows_is_a_slice_of_the_whole(folder, start, stop, step):
    wanted = slice(start, stop, step)
    keys = [row.key for row in read_codes(str(folder), rows=wanted)]
    assert keys == [f"key-{row}" for row in range(103)][wanted]


@given(st.lists(st.integers(0, 120), max_size=12))
def test_positions_come_once_each_in_the_files_order(folder, wanted):
    keys = [row.key for row in read_codes(str(folder), rows=wanted)]
    assert keys == [f"key-{row}" for row in sorted(set(wanted)) if row < 103]


def test_rows_of_some_keys_are_found(folder):
    found = {row.key: row.codes for row in read_codes(str(folder), keys={"key-40", "key-2", "no such"})}
    assert list(found) == ["key-2", "key-40"]
    np.testing.assert_array_equal(found["key-40"], codes_of(40))


def test_negative_rows_are_refused(folder):
    with pytest.raises(ValueError, match="count from 0"):
        next(read_codes(str(folder), rows=[-1]))
    with pytest.raises(ValueError, match="count from 0"):
        next(read_codes(str(folder), rows=slice(-5, None)))


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.list_(pa.int64())), pa.large_list(pa.large_list(pa.int32())), pa.list_(pa.list_(pa.int16()), 3)],
)
def test_another_tools_integer_types_and_column_name_are_read(tmp_path, kind):
    path = write(tmp_path / "other.parquet", 0, 9, column="audio_codes", kind=kind)
    for number, row in enumerate(read_codes(str(path))):
        assert row.codes.dtype == np.uint16
        np.testing.assert_array_equal(row.codes, codes_of(number))


@pytest.mark.parametrize(
    ("codes", "words"),
    [
        ([[1, 2], [3]], "ragged"),
        ([[1, 2], [3, 2048]], "2048"),
        ([[1, -2]], "-2"),
        ([[1, 70_000]], "70000"),
        ([[1]] * 33, "33 codebooks"),
        ([], "0 codebooks"),
        (None, "nulls"),
        ([[1], None], "nulls"),
    ],
)
def test_what_is_no_matrix_of_codes_is_refused_naming_the_file(tmp_path, codes, words):
    path = tmp_path / "bad.parquet"
    pq.write_table(pa.table({"codes": pa.array([codes], pa.list_(pa.list_(pa.int64())))}), path)
    with pytest.raises(RunDirError, match=r"bad\.parquet: can't be read as codes: .*" + words) as caught:
        list(read_codes(str(path)))
    assert "\n" not in str(caught.value)


def test_files_that_hold_no_codes_are_refused_naming_the_file(tmp_path):
    pq.write_table(pa.table({"tokens": [1]}), tmp_path / "a.parquet")
    with pytest.raises(RunDirError, match=r"a\.parquet: .*no column named codes or audio_codes, it has tokens"):
        list(read_codes(str(tmp_path)))
    whole = write(tmp_path / "b.parquet", 0, 40).read_bytes()
    (tmp_path / "b.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RunDirError, match=r"b\.parquet: can't be read as codes"):
        list(read_codes(str(tmp_path / "b.parquet")))
    with pytest.raises(RunDirError, match="no column named words"):
        list(read_codes(str(write(tmp_path / "c.parquet", 0, 1)), columns=["words"]))


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(RunDirError, match="no parquet file there"):
        list(read_codes(str(tmp_path)))


def test_frames_by_codebooks_are_refused_and_never_turned_round(tmp_path):
    rows = [codes_of(row, k=8).T.tolist() for row in (4, 5)]
    pq.write_table(pa.table({"codes": pa.array(rows, pa.list_(pa.list_(pa.int64())))}), tmp_path / "t-k.parquet")
    with pytest.raises(RunDirError, match=r"t-k\.parquet: .*6 lists in one row and 5 in another: that's \[T\]\[K\]"):
        list(read_codes(str(tmp_path / "t-k.parquet")))


def test_keys_that_are_numbers_are_text(tmp_path):
    pq.write_table(pa.table({"key": [7, None], "codes": [[[1]], [[2]]]}), tmp_path / "numbers.parquet")
    assert [row.key for row in read_codes(str(tmp_path))] == ["7", None]
    assert [row.key for row in read_codes(str(tmp_path), keys=["7"])] == ["7"]
