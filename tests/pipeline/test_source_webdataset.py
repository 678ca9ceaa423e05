"""Tars of samples: keys and columns from names, values from members, and what a cut or damaged tar costs."""

import gzip
import io
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline.errors import SourceError
from pipeline.formats.webdataset import split_name
from pipeline.records import FailedRow, Row
from tests.pipeline.source_data import (
    audio_bytes,
    good_rows,
    kept,
    rows_of,
    sound,
    source,
    starts_anywhere,
    write_tar,
)


def samples(count: int, ending: str = "wav") -> list[tuple[str, bytes]]:
    members = []
    for i in range(count):
        members += [(f"{i:03d}.{ending}", sound(i)), (f"{i:03d}.txt", f"text {i}".encode())]
        members += [(f"{i:03d}.json", b'{"n": %d, "s": "x"}' % i)]
    return members


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a.wav", ("a", "wav")),
        ("v22.0/part.b/clip_1.TAKE1.WAV", ("v22.0/part.b/clip_1", "TAKE1.WAV")),
        ("./a.wav", ("a", "wav")),
        ("new\nline.wav", ("new\nline", "wav")),
        ("._a.wav", None),
        ("folder/.hidden", None),
        ("README", None),
    ],
)
def test_a_key_ends_at_the_first_dot_of_the_base_name(name: str, parts: tuple[str, str] | None):
    assert split_name(name) == parts


def test_samples_come_in_order_with_decoded_columns(tmp_path: Path):
    write_tar(tmp_path / "train-00000.tar", samples(3))
    write_tar(tmp_path / "train-00001.tar", samples(2))
    src = source(tmp_path)
    rows = good_rows(src)
    assert [row.key for row in rows] == ["000", "001", "002", "000", "001"]
    assert [audio_bytes(row) for row in rows] == [sound(i) for i in (0, 1, 2, 0, 1)]
    assert kept(src).slice(1, 1).to_pylist() == [{"txt": "text 1", "json": {"n": 1, "s": "x"}, "__key__": "001"}]
    for shard in src.plan():
        starts_anywhere(src, shard)


def test_a_sample_without_audio_is_a_row_without_it(tmp_path: Path):
    members = samples(2)
    write_tar(tmp_path / "a.tar", [member for member in members if member[0] != "001.wav"])
    assert [row.audio is None for row in good_rows(source(tmp_path))] == [False, True]


def test_samples_may_have_audio_of_different_endings(tmp_path: Path):
    write_tar(tmp_path / "a.tar", [("a.wav", sound(1)), ("b.flac", sound(2)), ("c.MP3", sound(3))])
    rows = good_rows(source(tmp_path))
    assert [audio_bytes(row) for row in rows] == [sound(1), sound(2), sound(3)]


def test_two_sounds_in_a_sample_need_a_choice(tmp_path: Path):
    write_tar(tmp_path / "a.tar", [("a.wav", sound(1)), ("a.clean.wav", sound(2))])
    with pytest.raises(SourceError, match=r"audio_column: choose one of wav, clean\.wav"):
        source(tmp_path)
    assert audio_bytes(good_rows(source(tmp_path, audio_column="clean.wav"))[0]) == sound(2)


def test_a_column_named_in_another_case_is_found(tmp_path: Path):
    write_tar(tmp_path / "a.tar", [("x.TAKE1.WAV", sound(1)), ("x.Text.TXT", b"words")])
    src = source(tmp_path, audio_column="take1.wav")
    assert audio_bytes(good_rows(src)[0]) == sound(1)
    assert kept(src)["Text.TXT"].to_pylist() == ["words"]


def test_numbers_and_arrays_are_decoded_and_pictures_left_out(tmp_path: Path):
    array = io.BytesIO()
    np.save(array, np.arange(6, dtype=np.float32).reshape(2, 3))
    write_tar(tmp_path / "a.tar", [("a.wav", sound(1)), ("a.cls", b"7"), ("a.npy", array.getvalue()), ("a.jpg", b"x")])
    table = kept(source(tmp_path))
    assert table.schema == pa.schema(
        [("cls", pa.int64()), ("npy", pa.list_(pa.list_(pa.float32()))), ("__key__", pa.string())]
    )
    assert table.to_pylist() == [{"cls": 7, "npy": [[0, 1, 2], [3, 4, 5]], "__key__": "a"}]


def test_json_of_several_shapes_is_kept_as_its_text(tmp_path: Path):
    write_tar(
        tmp_path / "a.tar", [("a.wav", b"x"), ("a.json", b'{"n": 1}'), ("b.wav", b"x"), ("b.json", b'{"n": "1"}')]
    )
    assert kept(source(tmp_path))["json"].to_pylist() == ['{"n": 1}', '{"n": "1"}']


def test_a_value_unlike_the_others_fails_its_row_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pipeline.formats.webdataset.SAMPLES_SURVEYED", 1)
    members = [("a.wav", b"x"), ("a.cls", b"1"), ("b.wav", b"x"), ("b.cls", b"one"), ("c.wav", b"x"), ("c.cls", b"3")]
    write_tar(tmp_path / "a.tar", members)
    rows = rows_of(source(tmp_path))
    assert [isinstance(row, Row) for row in rows] == [True, False, True]
    assert rows[1].key == "b"


def test_the_same_key_again_is_another_sample(tmp_path: Path):
    write_tar(tmp_path / "a.tar", [("a.wav", sound(1)), ("a.wav", sound(2))])
    assert [row.key for row in good_rows(source(tmp_path))] == ["a", "a"]


def test_a_cut_tar_gives_what_came_before_and_one_lost_row(tmp_path: Path):
    path = write_tar(tmp_path / "a.tar", samples(5))
    write_tar(tmp_path / "b.tar", samples(1))
    with tarfile.open(path) as tar:
        offset = tar.getmember("003.wav").offset_data
    path.write_bytes(path.read_bytes()[: offset + 10])
    src = source(tmp_path)
    rows = rows_of(src)
    assert [row.key for row in rows if isinstance(row, Row)] == ["000", "001", "002", "000"]
    failed = [row for row in rows if isinstance(row, FailedRow)]
    assert [(row.shard, row.row, row.stage, row.kind) for row in failed] == [(0, 3, "source", "unreadable")]
    assert f"the rest of {path} after 3 samples is lost" in failed[0].message
    starts_anywhere(src, src.plan()[0])


@pytest.mark.parametrize("where", [0, 512, 1536, 4096])
def test_a_damaged_header_is_never_taken_for_the_end(tmp_path: Path, where: int):
    path = write_tar(tmp_path / "a.tar", samples(5))
    data = bytearray(path.read_bytes())
    data[where : where + 20] = b"\xff" * 20
    path.write_bytes(data)
    write_tar(tmp_path / "b.tar", samples(2))
    rows = rows_of(source(tmp_path))
    sounds = {audio_bytes(row) for row in rows if isinstance(row, Row)}
    lost = any(isinstance(row, FailedRow) for row in rows)
    assert lost or {sound(i) for i in range(5)} <= sounds | {bytes(data[512:720])}


@pytest.mark.parametrize(("num_bytes", "expected"), [(2048, [True, True]), (2049, [True, True, False])])
def test_a_tar_that_ends_between_members_is_whole_and_one_byte_more_is_damage(tmp_path: Path, num_bytes, expected):
    path = write_tar(tmp_path / "a.tar", [("a.wav", sound(1)), ("b.wav", sound(2))])
    path.write_bytes(path.read_bytes()[:num_bytes])
    assert [isinstance(row, Row) for row in rows_of(source(tmp_path))] == expected


def test_a_member_that_claims_to_be_huge_is_not_read(tmp_path: Path):
    info = tarfile.TarInfo("b.wav")
    info.size = 1 << 50
    path = write_tar(tmp_path / "a.tar", [("a.wav", sound(1))])
    path.write_bytes(path.read_bytes()[:1024] + info.tobuf(tarfile.GNU_FORMAT) + bytes(2048))
    rows = rows_of(source(tmp_path))
    assert [isinstance(row, Row) for row in rows] == [True, False]


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_names_are_whole(tmp_path: Path, format: int):
    name = "folder/" * 30 + "é" * 60
    write_tar(tmp_path / "a.tar", [(f"{name}.wav", sound(1)), ("b.wav", sound(2))], format=format)
    assert [row.key for row in good_rows(source(tmp_path))] == [name, "b"]


def test_a_compressed_tar_is_read(tmp_path: Path):
    plain = write_tar(tmp_path / "a.tar", samples(3))
    packed = tmp_path / "packed" / "a.tar.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert len(good_rows(source(packed))) == 3
    src = source(packed.parent)
    assert [audio_bytes(row) for row in good_rows(src)] == [sound(0), sound(1), sound(2)]
    starts_anywhere(src, src.plan()[0])
    packed.write_bytes(packed.read_bytes()[:-30])
    assert isinstance(rows_of(source(packed.parent))[-1], FailedRow)


def test_a_name_that_is_not_utf8_still_makes_a_key(tmp_path: Path):
    info = tarfile.TarInfo("caf\udce9.wav")
    info.size = 4
    with tarfile.open(tmp_path / "a.tar", "w", encoding="utf-8", errors="surrogateescape") as tar:
        tar.addfile(info, io.BytesIO(b"data"))
    assert [row.key for row in good_rows(source(tmp_path))] == ["caf\\udce9"]
