"""Parquet datasets: rows, keys, types, and what damage costs."""

import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import SourceError
from pipeline.records import FailedRow, Row
from tests.pipeline.source_data import (
    AUDIO_TYPE,
    audio_bytes,
    audio_table,
    good_rows,
    kept,
    rows_of,
    sound,
    source,
    starts_anywhere,
    write_parquet,
)


def test_rows_come_in_order_with_bytes_keys_and_numbers(tmp_path: Path):
    write_parquet(tmp_path / "a.parquet", audio_table(["x", "y", "z"]), rows=2)
    write_parquet(tmp_path / "b.parquet", audio_table(["w"]))
    src = source(tmp_path, id_column="id")
    rows = good_rows(src)
    assert [row.key for row in rows] == ["x", "y", "z", "w"]
    assert [audio_bytes(row) for row in rows] == [sound(0), sound(1), sound(2), sound(0)]
    assert [(row.shard, row.row) for row in rows] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    for shard in src.plan():
        starts_anywhere(src, shard)


def test_kept_columns_keep_their_exact_types_and_values(tmp_path: Path):
    zone = datetime.UTC
    columns = {
        "dictionary": pa.array(["a", "b", None]).dictionary_encode(),
        "when": pa.array([datetime.datetime(2024, 5, 1, tzinfo=zone), None, None], pa.timestamp("us", "Europe/Berlin")),
        "price": pa.array([None, 1, 2], pa.decimal128(10, 2)),
        "large": pa.array(["é\n", "", None], pa.large_string()),
        "nested": pa.array([{"a": [1, None], "b": {"c": "x"}}, None, {"a": [], "b": None}]),
        "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int32())),
        "fixed": pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2)),
        "blob": pa.array([b"\0\xff", None, b""], pa.binary()),
        "nothing": pa.nulls(3),
        "small": pa.array([1, None, 3], pa.int8()),
    }
    write_parquet(tmp_path / "a.parquet", audio_table(["x", "y", "z"], **columns), rows=2)
    table = kept(source(tmp_path))
    assert table.column_names == ["id", *columns]
    for name, column in columns.items():
        assert table[name].type == column.type
        assert table[name].to_pylist() == column.to_pylist()


@pytest.mark.parametrize("null_first", [True, False])
def test_a_column_of_nulls_takes_the_type_that_it_has_in_other_files(tmp_path: Path, null_first: bool):
    remarks = [pa.nulls(1), pa.array(["loud"])]
    for i, remark in enumerate(remarks if null_first else remarks[::-1]):
        write_parquet(tmp_path / f"{i}.parquet", audio_table([str(i)], remark=remark))
    table = kept(source(tmp_path))
    assert table["remark"].type == pa.string()
    assert set(table["remark"].to_pylist()) == {None, "loud"}


def test_columns_that_differ_are_one_line_with_file_and_column(tmp_path: Path):
    write_parquet(tmp_path / "a.parquet", audio_table(["x"], n=pa.array([1])))
    write_parquet(tmp_path / "b.parquet", audio_table(["x"], n=pa.array(["1"])))
    with pytest.raises(SourceError, match=r"b\.parquet: column 'n' is string, in .*a\.parquet it's int64") as caught:
        source(tmp_path)
    assert "\n" not in str(caught.value)
    assert good_rows(source(tmp_path, keep_columns=("id",)))


def test_a_missing_column_is_one_line_with_file_and_column(tmp_path: Path):
    write_parquet(tmp_path / "a.parquet", audio_table(["x"], n=pa.array([1])))
    write_parquet(tmp_path / "b.parquet", audio_table(["x"]))
    with pytest.raises(SourceError, match=r"b\.parquet: has no column 'n'"):
        source(tmp_path)


def test_a_difference_in_a_file_not_looked_at_is_told_when_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pipeline.formats.parquet.FILES_SURVEYED", 2)
    for i in range(3):
        extra = {"n": pa.array([1 if i != 1 else "one"])}
        write_parquet(tmp_path / f"{i}.parquet", audio_table(["x"], **extra))
    src = source(tmp_path)
    with pytest.raises(SourceError, match=r"1\.parquet: column 'n' is string, in the rest of the run int64"):
        rows_of(src)


def test_reserved_names_get_underscores_until_they_are_free(tmp_path: Path):
    table = audio_table(["x"], codes=pa.array([1]), codes_=pa.array([2]), key=pa.array([3]))
    write_parquet(tmp_path / "a.parquet", table)
    assert kept(source(tmp_path)).to_pylist() == [{"id": "x", "codes__": 1, "codes_": 2, "key_": 3}]


def test_an_id_that_is_no_string_becomes_one_and_null_gives_way_to_the_place(tmp_path: Path):
    write_parquet(tmp_path / "a.parquet", audio_table([7, None]))
    assert [row.key for row in good_rows(source(tmp_path, id_column="id"))] == ["7", "0/1"]


def test_without_an_id_column_the_path_is_the_key(tmp_path: Path):
    audio = pa.array([{"bytes": b"x", "path": "a/b.wav"}, {"bytes": b"x", "path": None}], AUDIO_TYPE)
    write_parquet(tmp_path / "a.parquet", pa.table({"audio": audio}))
    rows = good_rows(source(tmp_path))
    assert [row.key for row in rows] == ["a/b.wav", "0/1"]
    assert rows[0].kept.num_rows == 1  # though there is no column


def test_null_audio_is_a_row_without_audio(tmp_path: Path):
    audio = pa.array([None, {"bytes": None, "path": None}, {"bytes": b"", "path": "x.wav"}], AUDIO_TYPE)
    write_parquet(tmp_path / "a.parquet", pa.table({"audio": audio}))
    rows = good_rows(source(tmp_path))
    assert [row.audio is None for row in rows] == [True, True, False]
    assert audio_bytes(rows[2]) == b""


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_plain_bytes_are_audio(tmp_path: Path, kind: pa.DataType):
    write_parquet(tmp_path / "a.parquet", pa.table({"audio": pa.array([sound(1)], kind), "n": [1]}))
    assert audio_bytes(good_rows(source(tmp_path))[0]) == sound(1)


def test_paths_lead_from_the_datasets_folder(tmp_path: Path):
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "x.wav").write_bytes(sound(3))
    paths = ["clips/x.wav", str(tmp_path / "clips" / "x.wav"), "https://example.org/x.wav", "gone.wav"]
    write_parquet(tmp_path / "data" / "a.parquet", pa.table({"audio_path": paths}))
    rows = good_rows(source(tmp_path))
    assert [audio_bytes(row) for row in rows[:2]] == [sound(3), sound(3)]
    assert rows[2].audio is not None
    assert rows[2].audio.path == "https://example.org/x.wav"
    assert rows[3].audio is not None
    assert rows[3].audio.path == str(tmp_path / "gone.wav")


def test_other_media_is_left_out_unless_asked_for(tmp_path: Path):
    picture = pa.array([{"bytes": b"png", "path": "x.png"}], AUDIO_TYPE)
    features = '{"info": {"features": {"audio": {"_type": "Audio"}, "picture": {"_type": "Image"}}}}'
    table = audio_table(["x"], picture=picture).replace_schema_metadata({"huggingface": features})
    write_parquet(tmp_path / "a.parquet", table)
    assert kept(source(tmp_path)).column_names == ["id"]
    assert kept(source(tmp_path, keep_columns=("picture",)))["picture"].to_pylist() == picture.to_pylist()


def test_a_damaged_page_costs_the_rest_of_its_row_group_alone(tmp_path: Path):
    ids = [f"{i:03d}" for i in range(12)]
    values = [{"bytes": bytes([i]) * 5000, "path": None} for i in range(12)]
    table = pa.table({"id": ids, "audio": pa.array(values, AUDIO_TYPE)})
    path = write_parquet(tmp_path / "a.parquet", table, rows=4, compression="snappy", use_dictionary=False)
    meta = pq.read_metadata(path).row_group(1)
    start = next(meta.column(i) for i in range(3) if meta.column(i).path_in_schema == "audio.bytes").data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + 60] = b"\xff" * 60
    path.write_bytes(data)
    src = source(tmp_path, id_column="id")
    rows = rows_of(src)
    assert [row.key for row in rows if isinstance(row, Row)] == ids[:4] + ids[8:]
    failed = [row for row in rows if isinstance(row, FailedRow)]
    assert [(row.row, row.stage, row.kind) for row in failed] == [(i, "source", "unreadable") for i in range(4, 8)]
    assert "row group 1 of" in failed[0].message
    assert str(path) in failed[0].message
    starts_anywhere(src, src.plan()[0])


def test_a_file_that_is_no_parquet_is_one_failed_row(tmp_path: Path):
    write_parquet(tmp_path / "a.parquet", audio_table(["x"]))
    (tmp_path / "b.parquet").write_bytes(b"")
    (tmp_path / "c.parquet").write_bytes(b"PAR1 nonsense PAR1")
    write_parquet(tmp_path / "d.parquet", audio_table(["y"]))
    src = source(tmp_path, id_column="id")
    assert [isinstance(row, Row) for row in rows_of(src)] == [True, False, False, True]
    assert "b.parquet" in next(row.message for row in rows_of(src) if isinstance(row, FailedRow))


def test_a_folder_of_no_parquet_at_all_is_refused(tmp_path: Path):
    (tmp_path / "a.parquet").write_bytes(b"nonsense")
    with pytest.raises(SourceError, match=r"a\.parquet: isn't a parquet file"):
        source(tmp_path)


def test_text_that_is_not_utf8_fails_its_row_alone(tmp_path: Path):
    raw = pa.array([b"ok", b"\xff\xfe"]).cast(pa.binary())
    text = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    write_parquet(tmp_path / "a.parquet", pa.table({"id": text, "audio": audio_table(["x", "y"])["audio"]}))
    rows = rows_of(source(tmp_path, id_column="id", keep_columns=()))
    assert [isinstance(row, Row) for row in rows] == [True, False]


def test_a_file_changed_since_the_plan_is_refused_when_it_is_read(tmp_path: Path):
    path = write_parquet(tmp_path / "a.parquet", audio_table(["x"]))
    src = source(tmp_path)
    shard = src.plan()[0]
    size = path.stat().st_size
    write_parquet(path, audio_table(["x", "y", "z"]))
    with pytest.raises(SourceError, match=rf"a\.parquet: changed .*\({size} bytes then, {path.stat().st_size} now\)"):
        list(src.reader.rows(shard))
    path.unlink()
    with pytest.raises(SourceError, match=r"a\.parquet: gone"):
        list(src.reader.rows(shard))


def test_extension_types_are_kept_as_what_they_store(tmp_path: Path):
    uuid = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16], pa.binary(16)))
    write_parquet(tmp_path / "a.parquet", audio_table(["x"], uuid=uuid))
    table = kept(source(tmp_path))
    assert table["uuid"].type == pa.binary(16)
    assert table["uuid"].to_pylist() == [b"0" * 16]


def test_an_empty_dataset_is_known_to_be_empty(tmp_path: Path):
    write_parquet(tmp_path / "a.parquet", audio_table(["x"]).slice(0, 0))
    src = source(tmp_path)
    assert src.num_rows == 0
    assert rows_of(src) == []
