"""Folders of recordings, and tables that point at them."""

import json
import random
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import SourceError
from pipeline.records import FailedRow, Row
from pipeline.source import changed_files
from tests.pipeline.source_data import (
    audio_bytes,
    good_rows,
    kept,
    rows_of,
    sound,
    source,
    starts_anywhere,
    write_files,
)


def test_every_audio_file_under_a_folder_is_a_row_keyed_by_its_path(tmp_path: Path):
    names = ["a/clip.wav", "a/deep/er/clip.m4a", "b/with space/clip_ü.flac", "c.OPUS"]
    write_files(tmp_path, [*names, "a/.hidden.wav", "__cache__/x.wav", "a/notes.lab"])
    src = source(tmp_path)
    assert [row.key for row in good_rows(src)] == sorted(names)
    assert audio_bytes(good_rows(src)[0]) == sound(0)
    assert src.kept_schema.names == []
    assert src.info.notes == ("files that aren't read: 1 .lab",)
    for shard in src.plan():
        starts_anywhere(src, shard)


def test_folders_at_one_depth_are_labels(tmp_path: Path):
    write_files(tmp_path, ["cat/1.wav", "dog/1.wav"])
    assert kept(source(tmp_path)).to_pylist() == [{"label": "cat"}, {"label": "dog"}]


def test_recordings_beside_their_texts_are_the_dataset(tmp_path: Path):
    write_files(tmp_path, ["1.wav", "1.txt", "1.json", "2.wav", "2.txt", "2.json"])
    assert [row.key for row in good_rows(source(tmp_path))] == ["1.wav", "2.wav"]


def test_a_recordings_name_makes_no_split(tmp_path: Path):
    write_files(tmp_path, ["interview_test_1.wav", "song.wav"])
    assert len(good_rows(source(tmp_path))) == 2


def test_folders_named_as_splits_are_splits(tmp_path: Path):
    write_files(tmp_path, ["train/a.wav", "train/b.wav", "test/a.wav", "dev-clean/a.wav"])
    src = source(tmp_path, split="test+train")
    assert [shard.split for shard in src.plan()] == ["test", "train"]
    assert [row.key for row in good_rows(src)] == ["test/a.wav", "train/a.wav", "train/b.wav"]
    assert src.info.other_splits == {"validation": 1}
    assert len(good_rows(source(tmp_path, split="all"))) == 4


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_metadata_file_gives_rows_and_columns(tmp_path: Path, kind: str):
    write_files(tmp_path / "sub", ["1.wav", "2.wav", "unlisted.wav"])
    texts = ['the "text",\nin two lines', "é"]
    table = pa.table({"file_name": ["2.wav", "1.wav", "gone.wav"], "text": [*texts, None], "n": [1, 2, 3]})
    path = tmp_path / "sub" / f"metadata.{kind}"
    if kind == "parquet":
        pq.write_table(table, path)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        path.write_text('file_name,text,n\n2.wav,"the ""text"",\nin two lines",1\n1.wav,é,2\ngone.wav,,3\n')
    src = source(tmp_path)
    rows = good_rows(src)
    assert [row.key for row in rows] == ["sub/2.wav", "sub/1.wav", "sub/gone.wav"]
    assert [audio_bytes(row) for row in rows[:2]] == [sound(1), sound(0)]
    assert kept(src).to_pylist() == table.drop_columns("file_name").to_pylist()
    assert src.info.notes == ("audio files that no metadata file names, and that are left out: 1",)
    for shard in src.plan():
        starts_anywhere(src, shard)


def test_metadata_without_file_names_is_refused(tmp_path: Path):
    write_files(tmp_path, ["1.wav"])
    (tmp_path / "metadata.csv").write_text("file,text\n1.wav,x\n")
    with pytest.raises(SourceError, match=r"metadata\.csv: has no column 'file_name'"):
        source(tmp_path)


def test_a_replaced_recording_is_noticed_though_a_table_names_it(tmp_path: Path):
    write_files(tmp_path, ["1.wav", "2.wav"])
    (tmp_path / "metadata.csv").write_text("file_name,text\n1.wav,x\n2.wav,y\n")
    plan = source(tmp_path).plan()
    assert changed_files(plan) == []
    (tmp_path / "2.wav").write_bytes(b"another")
    assert [line.split(": changed")[0] for line in changed_files(plan)] == [str(tmp_path / "2.wav")]


def manifest(folder: Path, lines: list[str], name: str = "manifest.jsonl") -> Path:
    write_files(folder / "audio", ["1.wav", "2.wav"])
    path = folder / name
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def test_a_manifests_paths_lead_from_its_own_folder(tmp_path: Path):
    lines = [json.dumps({"id": i, "audio": f"audio/{i}.wav", "when": "2024-01-01T00:00:00"}) for i in (1, 2)]
    path = manifest(tmp_path, lines)
    direct, named = source(path), source("json", data_files=str(path), id_column="id")
    for src in (direct, named):
        assert [audio_bytes(row) for row in good_rows(src)] == [sound(0), sound(1)]
        assert kept(src)["when"].to_pylist() == ["2024-01-01T00:00:00"] * 2
    assert [row.key for row in good_rows(direct)] == ["audio/1.wav", "audio/2.wav"]
    assert [row.key for row in good_rows(named)] == ["1", "2"]


def test_a_wrong_line_is_a_lost_row(tmp_path: Path):
    lines = ['{"audio": "audio/1.wav"}', '{"audio": "audio/', "[1]", '{"audio": "audio/2.wav"}']
    src = source(manifest(tmp_path, lines))
    rows = rows_of(src)
    assert [isinstance(row, Row) for row in rows] == [True, False, False, True]
    assert [row.row for row in rows] == [0, 1, 2, 3]
    failed = [row for row in rows if isinstance(row, FailedRow)]
    assert "row 1 can't be read as JSON" in failed[0].message
    for shard in src.plan():
        starts_anywhere(src, shard)


def test_a_json_array_is_a_manifest_too(tmp_path: Path):
    path = manifest(tmp_path, [json.dumps([{"audio": "audio/1.wav"}, {"audio": "audio/2.wav", "n": 1}])], "m.json")
    src = source(path)
    assert [audio_bytes(row) for row in good_rows(src)] == [sound(0), sound(1)]
    assert kept(src)["n"].to_pylist() == [None, 1]


def test_types_are_those_of_the_whole_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pipeline.formats.json_table.CHUNK_ROWS", 1)
    values = [
        {"n": 1, "mixed": 1, "s": {"a": 1}, "e": {}},
        {"n": None, "mixed": "x", "s": {"b": "y"}, "e": {}},
        {"n": 2.5},
    ]
    path = manifest(tmp_path, [json.dumps({"audio": "audio/1.wav", **value}) for value in values])
    table = kept(source(path))
    assert table["n"].to_pylist() == [1.0, None, 2.5]
    assert table["mixed"].to_pylist() == ["1", '"x"', None]
    assert table["s"].to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": "y"}, None]
    assert table["e"].to_pylist() == ["{}", "{}", None]


def test_csv_keeps_text_as_it_is(tmp_path: Path):
    lines = ["id,audio,when,none,empty", '007,audio/1.wav,2024-01-01,NA,""', "a b,audio/2.wav,2024-01-02,null,"]
    src = source(manifest(tmp_path, lines, "m.csv"), id_column="id")
    assert [row.key for row in good_rows(src)] == ["007", "a b"]
    assert kept(src).drop_columns("id").to_pylist() == [
        {"when": "2024-01-01", "none": "NA", "empty": ""},
        {"when": "2024-01-02", "none": "null", "empty": None},
    ]


def test_ids_of_csv_keep_their_zeros(tmp_path: Path):
    src = source(manifest(tmp_path, ["id,audio", "007,audio/1.wav"], "m.csv"), id_column="id")
    assert [row.key for row in good_rows(src)] == ["007"]


def test_a_csv_line_with_too_few_fields_is_a_lost_row(tmp_path: Path):
    lines = ["audio,text", "audio/1.wav,x", "audio/1.wav", 'audio/2.wav,"y\nz"', "a,b,c", "audio/2.wav,w"]
    src = source(manifest(tmp_path, lines, "m.csv"))
    assert [isinstance(row, Row) for row in rows_of(src)] == [True, False, True, False, True]
    assert rows_of(src)[2].key == "audio/2.wav"


def test_a_table_of_tabs_is_read(tmp_path: Path):
    assert len(good_rows(source(manifest(tmp_path, ["audio\ttext", "audio/1.wav\ta, b"], "m.tsv")))) == 1


def test_a_manifest_that_is_no_table_is_refused(tmp_path: Path):
    with pytest.raises(SourceError, match=r"m\.jsonl: isn't a table that can be read"):
        source(manifest(tmp_path, ["nonsense"], "m.jsonl"))


def write_zip(path: Path, names: list[str]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for i, name in enumerate(names):
            out.writestr(name, random.Random(i).randbytes(300))
    return path


def test_the_recordings_in_zip_archives_are_rows(tmp_path: Path):
    write_zip(tmp_path / "a.zip", ["b/2.wav", "b/1.mp3", "__MACOSX/b/._1.mp3", "notes.txt"])
    write_zip(tmp_path / "b.zip", ["3.flac"])
    for src in (source(tmp_path), source("audiofolder", data_files=str(tmp_path / "*.zip"))):
        assert [row.key for row in good_rows(src)] == ["b/1.mp3", "b/2.wav", "3.flac"]
        assert audio_bytes(good_rows(src)[0]) == random.Random(1).randbytes(300)
        starts_anywhere(src, src.plan()[0])


def test_a_damaged_member_of_an_archive_fails_alone(tmp_path: Path):
    path = write_zip(tmp_path / "a.zip", ["1.wav", "2.wav", "3.wav"])
    data = bytearray(path.read_bytes())
    place = data.index(b"2.wav") + 20
    data[place : place + 50] = bytes(50)
    path.write_bytes(data)
    rows = rows_of(source(tmp_path))
    assert [isinstance(row, Row) for row in rows] == [True, False, True]
    assert rows[1].key == "2.wav"


def test_an_archive_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pipeline.formats.archive.LARGE_BYTES", 1 << 20)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("1.wav", bytes(20 << 20))
    (row,) = rows_of(source(tmp_path))
    assert isinstance(row, FailedRow)
    assert "claims 20971520 bytes" in row.message


def test_audio_of_json_may_be_an_object_with_a_path(tmp_path: Path):
    path = manifest(tmp_path, [json.dumps({"sound": {"path": "audio/1.wav"}, "n": 1})])
    assert audio_bytes(good_rows(source(path))[0]) == sound(0)


def test_links_that_lead_nowhere_are_rows_and_no_obstacle(tmp_path: Path):
    (tmp_path / "b.wav").write_bytes(sound(1))
    (tmp_path / "a.wav").symlink_to("a.wav")
    (tmp_path / "c.wav").symlink_to("/nowhere/c.wav")
    (tmp_path / "d").symlink_to("d")
    src = source(tmp_path)
    assert [row.key for row in good_rows(src)] == ["a.wav", "b.wav", "c.wav"]
    assert changed_files(src.plan()) == []
