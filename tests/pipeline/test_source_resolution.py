"""Which files and splits a job's `input` means, and what is refused."""

import json
from pathlib import Path

import datasets
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import SourceError
from pipeline.records import FailedRow, Row
from pipeline.resolution import split_files, wanted_splits
from pipeline.source import SourceReader, changed_files
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
    write_files,
    write_parquet,
    write_tar,
)


def test_splits_are_found_as_datasets_finds_them(tmp_path: Path):
    layouts = [
        ["data/train-00000-of-00001.parquet", "data/extra-00000-of-00001.parquet"],
        ["train.parquet", "my_test.parquet", "eval/x.parquet"],
        ["train-1.parquet", "dev-1.parquet", "other.parquet"],
        ["a/training/x.parquet", "a/val/x.parquet"],
        ["x.parquet", "contest.parquet", "retrain.parquet"],
    ]
    for i, names in enumerate(layouts):
        root = tmp_path / str(i)
        for name in names:
            write_parquet(root / name, audio_table(["x"]))
        builder = datasets.load_dataset_builder(str(root), cache_dir=str(tmp_path / "cache"))
        assert builder.config.data_files is not None
        expected = {str(s): [str(Path(f).relative_to(root)) for f in fs] for s, fs in builder.config.data_files.items()}
        found = source(root, split="all")
        assert {s: [str(Path(f.url).relative_to(root)) for f in fs] for s, fs in found.resolved.splits.items()} == {
            split: sorted(files) for split, files in expected.items()
        }


def test_slices_are_refused_with_a_hint():
    with pytest.raises(SourceError, match=r"input\.split: 'train\[:10%\]'.*input\.limit"):
        wanted_splits("train[:10%]")


@pytest.mark.parametrize("split", ["", "a/b", "../x", "a-b", "a..b", "train+", "train+train"])
def test_what_cannot_be_a_file_name_is_no_split(split: str):
    with pytest.raises(SourceError, match=r"input\.split"):
        wanted_splits(split)


def test_a_split_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path):
    write_parquet(tmp_path / "train.parquet", audio_table(["x"]))
    with pytest.raises(SourceError, match=r"no split 'test'; the dataset has train"):
        source(tmp_path, split="test")


def test_names_alone_decide_splits_unless_recordings_stay_over():
    names = ["test_1.wav", "b.wav"]
    assert split_files(names, complete=False) == {"test": [0]}
    assert split_files(names, complete=True) == {"train": [0, 1]}


def test_a_path_that_is_not_there_is_refused_by_name(tmp_path: Path):
    gone = tmp_path / "gone"
    with pytest.raises(SourceError, match=rf"input\.path: there is no file or folder {gone}"):
        source(gone)


def test_an_audio_column_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path):
    write_parquet(tmp_path / "a.parquet", audio_table(["x"], text=pa.array(["y"])))
    with pytest.raises(
        SourceError, match=r"audio_column: 'sound' isn't in the dataset; its columns are id, audio, text"
    ):
        source(tmp_path, audio_column="sound")
    with pytest.raises(SourceError, match=r"id_column: 'key' isn't in the dataset"):
        source(tmp_path, id_column="key")
    with pytest.raises(SourceError, match=r"keep_columns: 'a', 'b' not in the dataset"):
        source(tmp_path, keep_columns=("a", "text", "b"))
    with pytest.raises(SourceError, match=r"keep_columns: 'audio' is the audio itself"):
        source(tmp_path, keep_columns=("audio",), audio_column="audio")


def test_without_any_audio_the_columns_are_listed(tmp_path: Path):
    write_parquet(tmp_path / "a.parquet", pa.table({"id": [1], "path": ["not/audio.txt"]}))
    with pytest.raises(SourceError, match="no column is known to be audio; name one of the dataset's: id, path"):
        source(tmp_path)


def test_a_folder_without_data_is_refused(tmp_path: Path):
    write_files(tmp_path, ["a.png", "b.png"])
    with pytest.raises(SourceError, match=r"holds no file that is read: 2 \.png"):
        source(tmp_path)


@pytest.mark.parametrize(
    "data_files",
    ["*.parquet", ["a.parquet", "b.parquet"], {"train": "a.parquet", "x": "b.parquet"}, "sub/../[ab].parquet"],
)
def test_data_files_may_be_patterns_lists_and_mappings(tmp_path: Path, data_files):
    write_parquet(tmp_path / "a.parquet", audio_table(["a"]))
    write_parquet(tmp_path / "b.parquet", audio_table(["b"]))
    (tmp_path / "sub").mkdir()
    src = source(tmp_path, data_files=data_files, split="all", id_column="id")
    assert [row.key for row in good_rows(src)] == ["a", "b"]


def test_a_builder_with_patterns_of_absolute_paths(tmp_path: Path):
    write_parquet(tmp_path / "x" / "a.parquet", audio_table(["a"]))
    write_parquet(tmp_path / "y" / "b.parquet", audio_table(["b"]))
    src = source("parquet", data_files=str(tmp_path / "**" / "*.parquet"))
    assert len(good_rows(src)) == 2
    assert src.resolved.root == str(tmp_path)
    assert len(good_rows(source("parquet", data_dir=str(tmp_path / "x")))) == 1


def test_a_single_file_is_a_dataset(tmp_path: Path):
    path = write_parquet(tmp_path / "test.parquet", audio_table(["a"]))
    assert len(good_rows(source(path))) == 1


def test_a_cards_configs_are_followed(tmp_path: Path):
    write_parquet(tmp_path / "one" / "a.parquet", audio_table(["a"]))
    write_parquet(tmp_path / "two" / "b.parquet", audio_table(["b"]))
    configs = "".join(f"- config_name: {n}\n  data_files: {n}/*.parquet\n" for n in ("one", "two"))
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    assert [row.key for row in good_rows(source(tmp_path, name="two", id_column="id"))] == ["b"]


def test_folders_of_partitions_are_one_dataset(tmp_path: Path):
    write_parquet(tmp_path / "year=2023" / "part-0.parquet", audio_table(["a"]))
    write_parquet(tmp_path / "year=2024" / "part-0.parquet", audio_table(["b"]))
    assert [row.key for row in good_rows(source(tmp_path, id_column="id"))] == ["a", "b"]


def saved(table: pa.Table) -> datasets.Dataset:
    return datasets.Dataset(table)


def test_saved_datasets_are_read_alone_and_by_split(tmp_path: Path):
    table = audio_table(["a", "b", "c"])
    saved(table).save_to_disk(str(tmp_path / "one"), num_shards=2)
    alone = source(tmp_path / "one", id_column="id")
    assert [audio_bytes(row) for row in good_rows(alone)] == [sound(0), sound(1), sound(2)]
    assert kept(alone)["id"].to_pylist() == ["a", "b", "c"]
    both = datasets.DatasetDict({"train": saved(table), "test": saved(table.slice(0, 1))})
    both.save_to_disk(str(tmp_path / "both"))
    src = source(tmp_path / "both", split="test+train")
    assert [(shard.split, len(list(src.reader.rows(shard)))) for shard in src.plan()] == [("test", 1), ("train", 3)]
    for shard in src.plan():
        starts_anywhere(src, shard)


def test_a_saved_dataset_that_is_cut_loses_its_rest_alone(tmp_path: Path):
    path = tmp_path / "data.arrow"
    with pa.ipc.new_stream(str(path), audio_table(["x"]).schema) as out:
        for i in range(4):
            out.write_table(audio_table([str(i)]))
    path.write_bytes(path.read_bytes()[:-400])
    src = source(tmp_path, id_column="id")
    assert [isinstance(row, Row) for row in rows_of(src)] == [True, True, True, False]
    starts_anywhere(src, src.plan()[0])


def test_a_saved_state_cannot_name_files_elsewhere(tmp_path: Path):
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "../../secret.arrow"}]}))
    with pytest.raises(SourceError, match="isn't in the folder itself"):
        source(tmp_path)


@pytest.fixture
def bucket():
    """A store that isn't this machine's disk."""
    store = fsspec.filesystem("memory")
    yield store
    store.store.clear()
    store.pseudo_dirs[:] = [""]


def put(path: Path, url: str) -> None:
    with fsspec.open(url, "wb") as out:
        out.write(path.read_bytes())  # pyright: ignore[reportAttributeAccessIssue]


def test_a_remote_folder_is_read_and_its_changes_noticed(tmp_path: Path, bucket):
    path = write_parquet(tmp_path / "a.parquet", audio_table(["a", "b"]))
    put(path, "memory://set/data/a.parquet")
    put(write_tar(tmp_path / "a.tar", [("a.wav", sound(1))]), "memory://tars/a.tar")
    src = source("memory://set", id_column="id")
    assert [row.key for row in good_rows(src)] == ["a", "b"]
    assert src.info.remote
    assert changed_files(src.plan()) == []
    bucket.pipe("/set/data/a.parquet", b"other")
    assert "changed" in changed_files(src.plan())[0]
    assert len(good_rows(source("memory://tars"))) == 1
    assert len(good_rows(source("memory://tars/a.tar"))) == 1
    assert len(good_rows(source("memory://tars", data_files="*.tar"))) == 1


def test_a_remote_dataset_leads_nowhere_on_this_machine(tmp_path: Path, bucket):
    paths = [
        str(tmp_path / "x.wav"),
        "file:///etc/passwd",
        "../x.wav",
        "local:///x.wav",
        "zip://a::file:///x",
        "in/x.wav",
    ]
    audio = pa.array([{"bytes": None, "path": path} for path in paths], AUDIO_TYPE)
    put(write_parquet(tmp_path / "a.parquet", pa.table({"audio": audio})), "memory://set/a.parquet")
    rows = rows_of(source("memory://set"))
    assert [isinstance(row, FailedRow) for row in rows] == [True] * 5 + [False]
    assert all(
        row.kind == "unreadable" and "isn't followed" in row.message for row in rows if isinstance(row, FailedRow)
    )
    last = rows[-1]
    assert isinstance(last, Row)
    assert last.audio is not None
    assert str(last.audio.path).endswith("set/in/x.wav")


def test_a_store_that_fails_is_no_fault_of_the_rows(tmp_path: Path, bucket, monkeypatch: pytest.MonkeyPatch):
    put(write_tar(tmp_path / "a.tar", [("a.wav", sound(1))]), "memory://set/a.tar")
    put(write_parquet(tmp_path / "a.parquet", audio_table(["a"])), "memory://two/a.parquet")
    sources = [source("memory://set"), source("memory://two")]
    plans = [src.plan() for src in sources]

    def fail(self, size=-1):
        raise TimeoutError("no answer")

    monkeypatch.setattr("fsspec.implementations.memory.MemoryFile.read", fail, raising=False)
    for src, plan in zip(sources, plans, strict=True):
        with pytest.raises(SourceError, match=r"can't be read now: TimeoutError: no answer"):
            list(src.reader.rows(plan[0]))


def test_the_reader_goes_through_json(tmp_path: Path):
    when = pa.array([0], pa.timestamp("us", "UTC"))
    write_parquet(tmp_path / "a.parquet", audio_table(["a"], when=when))
    src = source(tmp_path, id_column="id")
    copy = SourceReader.from_json(json.loads(json.dumps(src.reader.to_json())))
    assert copy == src.reader
    assert [row.key for row in copy.rows(src.plan()[0]) if isinstance(row, Row)] == ["a"]


def test_what_identifies_the_input_is_told(tmp_path: Path):
    write_parquet(tmp_path / "a.parquet", audio_table(["a"]))
    one, two = (source(tmp_path, id_column=name).fingerprint_facts() for name in (None, "id"))
    assert one == source(tmp_path).fingerprint_facts()
    assert one != two
    assert json.loads(json.dumps(one)) == one


def test_peek_reads_the_first_rows_alone(tmp_path: Path):
    for i in range(3):
        write_parquet(tmp_path / f"{i}.parquet", audio_table([str(i)]))
    (tmp_path / "2.parquet").write_bytes(pq.read_metadata(tmp_path / "1.parquet").num_rows * b"x")
    src = source(tmp_path, id_column="id")
    assert [row.key for row in src.peek(2)] == ["0", "1"]
