"""What is refused before anything starts, that nothing is written then, and what a checked job comes to."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from jobs import submission
from jobs.submission import check, check_run, model_spec, nothing_left
from jobs.verification import verify
from mimi.config import MimiConfig
from mimi.layouts import all_shapes
from pipeline.errors import ConfigError, RunDirError
from pipeline.records import FailedRow
from tests.jobs.making import make_run, publish, random_codes, wav, write_checkpoint_header, write_dataset, write_job


def refused(job_file: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        check(job_file, overrides)
    return raised.value.problems


def all_files(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*")}


def test_a_job_that_may_start_is_prepared_and_nothing_is_written(job_file, tmp_path):
    before = all_files(tmp_path)
    prepared = check(job_file, ["model.num_codebooks=16", "model.chunk_seconds=1", "ray.actors=1"])
    assert all_files(tmp_path) == before
    assert len(prepared.dataset.shards) == 2
    assert [row.problem is None for row in prepared.dataset.peeked] == [True, True, True, False]
    assert [row.seconds for row in prepared.dataset.peeked[:3]] == [0.2, 0.5, 0.3]
    spec = model_spec(prepared)
    assert (spec.weights, spec.num_codebooks, spec.precision, spec.chunk_frames) == ("random:0", 16, "float32", 12)


@pytest.mark.parametrize(
    ("override", "where", "words"),
    [
        ("input.path=/nowhere/at/all", "input.path", ["/nowhere/at/all"]),
        ("input.split=test", "input.split", ["test", "train"]),
        ("input.audio_column=sound", "input.audio_column", ["'sound'", "id, audio, text, number"]),
        ("input.id_column=name", "input.id_column", ["'name'", "id, audio, text, number"]),
        ("input.keep_columns=[text, words]", "input.keep_columns", ["'words'"]),
        ("input.data_files=https://me:secret@here/x.parquet", "input.data_files", ["password", "environment"]),
        ("model.weights=/nowhere/mimi.safetensors", "model.weights", ["/nowhere/mimi.safetensors"]),
        ("model.weights=random:x", "model.weights", ["random:x", "seed"]),
        ("model.kv_repeat=2", "model.kv_repeat", ["is 2", "must be the integer 1"]),
        ("model.num_codebooks=33", "model.num_codebooks", ["33", "32"]),
        ("ray.cpus_per_actor=4096", "ray.cpus_per_actor", ["4096", "this machine has"]),
        ("ray.actors=4096", "ray.actors", ["4096 actors", "don't fit"]),
        ("output.path=memory://out", "output.path", ["memory://"]),
        ("output.path=hf://datasets/a/b", "output.path", ["hf://"]),
    ],
)
def test_what_cannot_run_is_one_line_naming_where_it_was_set(job_file, override, where, words, tmp_path):
    before = all_files(tmp_path)
    (line,) = refused(job_file, override)
    assert line.startswith(f"command line: {where}: ")
    assert all(word in line for word in words), line
    assert "secret" not in line
    assert all_files(tmp_path) == before


def test_an_address_where_no_cluster_answers_is_refused(job_file):
    (line,) = refused(job_file, "ray.address=127.0.0.1:1")
    assert line.startswith("command line: ray.address: nothing answers at 127.0.0.1:1") and "ray start" in line


def test_problems_of_the_file_the_dataset_and_the_weights_come_together(tmp_path, dataset):
    job_file = write_job(
        tmp_path, dataset, input={"audio_column": "sound"}, model={"kv_repeat": 4, "weights": "/no/such", "slot": 1}
    )
    lines = refused(job_file, "ray.actors=4096")
    keys = {line.split(": ")[1] for line in lines}
    assert keys == {"model.kv_repeat", "model.slot", "input.audio_column", "model.weights", "ray.actors"}
    assert not (tmp_path / "out").exists()


def test_more_codebooks_than_the_checkpoint_has_are_refused(job_file, tmp_path):
    config = MimiConfig(num_codebooks=4)
    path = write_checkpoint_header(tmp_path / "tokenizer-a-checkpoint1.safetensors", all_shapes(config))
    (line,) = refused(job_file, f"model.weights={path}")
    assert line == f"{job_file}: model.num_codebooks: is 8, the checkpoint has 4, ask for 4 or fewer"
    assert check(job_file, [f"model.weights={path}", "model.num_codebooks=4"]).weights.info.num_codebooks == 4


def test_a_column_that_no_row_decodes_from_is_refused(tmp_path):
    dataset = write_dataset(tmp_path / "dataset", [[b"a", b"b", None]])
    (line,) = refused(write_job(tmp_path, dataset))
    assert "none of the first 3 rows can be decoded (0-0: unreadable" in line


def test_one_row_that_decodes_is_enough(tmp_path):
    dataset = write_dataset(tmp_path / "dataset", [[b"a", b"b", None, wav()]])
    assert len(check(write_job(tmp_path, dataset)).dataset.peeked) == 4


def test_an_empty_dataset_is_accepted(tmp_path):
    dataset = write_dataset(tmp_path / "dataset", [[]])
    assert check(write_job(tmp_path, dataset)).dataset.peeked == ()


# ---- output


def test_an_output_that_is_a_file_is_refused(job_file, tmp_path):
    (tmp_path / "out").write_text("mine")
    (line,) = refused(job_file)
    assert line == f"{job_file}: output.path: {tmp_path}/out is a file, choose another output.path"


def test_an_output_beneath_a_file_is_refused(job_file, tmp_path):
    (tmp_path / "file").write_text("mine")
    (line,) = refused(job_file, f"output.path={tmp_path}/file/out")
    assert line == f"command line: output.path: {tmp_path}/file is a file, choose another output.path"


def test_an_output_that_holds_something_else_is_refused(job_file, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.doc").write_text("mine")
    (line,) = refused(job_file)
    assert "holds something else (thesis.doc)" in line
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.doc"]


def test_an_output_that_cannot_be_written_is_refused(job_file, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root, as which tests may run, could write anywhere
    (line,) = refused(job_file)
    assert line == (f"{job_file}: output.path: {tmp_path} can't be written to by this user, choose another output.path")


def test_an_output_whose_name_is_too_long_is_refused(job_file):
    (line,) = refused(job_file, f"output.path={'x' * 300}")
    assert "too long" in line


def test_another_jobs_output_is_refused_naming_what_differs(job_file):
    make_run(job_file)
    lines = refused(job_file, "model.num_codebooks=4", "audio.channels=first", "model.slots=7")
    assert [line.split("this run's ")[1].split(",")[0] for line in lines] == [
        'audio.channels: was "mix"',
        "model.num_codebooks: was 8",
    ]


def test_the_same_jobs_run_is_carried_on_with(job_file):
    run = make_run(job_file)
    existing = check(job_file, ["model.slots=3", "ray.actors=1", "output.checkpoint_seconds=5"]).existing
    assert existing is not None and existing.manifest == run.manifest


def test_a_run_that_a_living_driver_holds_is_refused(job_file):
    run = make_run(job_file)
    with run.locked():
        (line,) = refused(job_file)
        assert "is being worked on by" in line and str(os.getpid()) in line
        with pytest.raises(RunDirError, match="is being worked on by"):
            check_run(run.storage.root)


# ---- resume


def test_resume_takes_the_job_from_the_manifest(job_file, tmp_path, monkeypatch):
    make_run(job_file, "model.num_codebooks=4", "audio.min_seconds=0.1")
    monkeypatch.chdir("/")
    os.unlink(job_file)
    prepared = check_run(str(tmp_path / "out"), ["model.slots=5", "audio.row_timeout_s=9"])
    assert prepared is not None
    assert (prepared.config.model.num_codebooks, prepared.config.audio.min_seconds) == (4, 0.1)
    assert (prepared.resources.slots, prepared.config.audio.row_timeout_s) == (5, 9)


@pytest.mark.parametrize(
    "override", ["model.num_codebooks=4", "input.path=/x", "audio.channels=each", "output.path=/x", "model.weights=x"]
)
def test_resume_refuses_to_change_the_rows(job_file, override):
    run = make_run(job_file)
    with pytest.raises(ConfigError) as raised:
        check_run(run.storage.root, [override])
    (line,) = [each for each in raised.value.problems if "when resuming" in each]
    assert line.startswith(f"command line: {override.partition('=')[0]}: can't be changed when resuming")


def test_resume_refuses_a_dataset_whose_columns_changed(job_file, dataset):
    run = make_run(job_file)
    write_dataset(dataset, [[wav()], [wav()], [wav()]])
    for path in dataset.glob("*-of-00002.parquet"):
        path.unlink()
    with pytest.raises(ConfigError) as raised:
        check_run(run.storage.root)
    assert any("train-00000-of-00002.parquet" in line for line in raised.value.problems)


def test_resume_refuses_a_file_that_was_replaced_under_its_name(job_file, dataset):
    run = make_run(job_file)
    file = dataset / "train-00001-of-00002.parquet"
    file.write_bytes((dataset / "train-00000-of-00002.parquet").read_bytes())
    with pytest.raises(ConfigError) as raised:
        check_run(run.storage.root)
    (line,) = raised.value.problems
    assert str(file) in line and "changed" in line


def test_resume_refuses_other_weights_under_the_same_name(job_file, tmp_path):
    path = tmp_path / "tokenizer-a-checkpoint1.safetensors"
    write_checkpoint_header(path, all_shapes(MimiConfig()))
    run = make_run(job_file, f"model.weights={path}")
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(ConfigError, match=r"this run's model\.weights_sha256: was"):
        check_run(run.storage.root)


def test_resume_of_a_finished_run_has_nothing_to_do(job_file, dataset):
    run = make_run(job_file)
    for shard in run.shards():
        failed = [FailedRow(shard.index, 1, "x", "decode", "unreadable", "no sound")]
        publish(run, shard, [random_codes(3)], failed)
    for path in dataset.iterdir():  # nothing is read again
        path.unlink()
    assert check_run(run.storage.root) is None
    outcome = nothing_left(run.storage.root)
    assert (outcome.finished, outcome.rows, outcome.encoded, outcome.failed, outcome.frames) == (True, 4, 2, 2, 6)


def test_resume_with_retry_failed_takes_a_finished_run_up_again(job_file):
    run = make_run(job_file)
    for shard in run.shards():
        publish(run, shard, [random_codes(3)], [FailedRow(shard.index, 1, "x", "decode", "unreadable", "no sound")])
    prepared = check_run(run.storage.root, retry_failed=True)
    assert prepared is not None and prepared.retry_failed


def test_resume_refuses_a_manifest_that_was_edited_to_agree_with_itself(job_file):
    run = make_run(job_file)
    manifest = Path(run.storage.root) / "job.json"
    manifest.write_text(manifest.read_text().replace('"channels": "mix"', '"channels": "first"'))
    with pytest.raises(RunDirError, match="was edited"):
        check_run(run.storage.root)
    assert any("was edited" in problem for problem in verify(run.storage.root).problems)


def test_resume_where_no_run_is_says_so(tmp_path):
    with pytest.raises(RunDirError, match="is not a run"):
        check_run(str(tmp_path))


def test_a_literal_credential_is_not_kept_and_is_asked_for_by_name(job_file, tmp_path, monkeypatch):
    monkeypatch.setenv("TOKEN", "from-the-environment")
    secrets = ["output.storage_options.secret=s3cr3t-word", "output.storage_options.token='${TOKEN}'"]
    run = make_run(job_file, *secrets, "output.storage_options.anon=false")
    written = "".join(p.read_bytes().decode("latin-1") for p in (tmp_path / "out").rglob("*") if p.is_file())
    assert "s3cr3t-word" not in written and "from-the-environment" not in written
    assert run.manifest["job"]["output"]["storage_options"] == {"token": "${TOKEN}", "anon": False}
    with pytest.raises(ConfigError, match=r"output\.storage_options\.secret: was given literally and isn't kept"):
        check_run(run.storage.root)
    prepared = check_run(run.storage.root, ["output.storage_options.secret=again"])
    assert prepared is not None
    assert prepared.config.output.storage_options == {
        "token": "from-the-environment", "anon": False, "secret": "again"
    }  # fmt: skip


# ---- speed: what isn't needed isn't imported, what hangs isn't waited for


def test_a_refused_job_imports_neither_ray_nor_torch_nor_datasets(job_file, tmp_path):
    code = """
import sys
from jobs.cli import main
try:
    main(["submit", sys.argv[1], "model.kv_repeat=2"])
except SystemExit as end:
    print(end.code, [name for name in ("ray", "torch", "datasets") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code, job_file], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "2 []"
    (line,) = done.stderr.splitlines()
    assert line.startswith("command line: model.kv_repeat: is 2, must be the integer 1")
    assert not (tmp_path / "out").exists()


def test_a_check_that_hangs_is_left_when_the_file_is_wrong_already(job_file, monkeypatch):
    hang = threading.Event()
    monkeypatch.setattr(submission, "PATIENCE_S", 0.05)
    monkeypatch.setattr(submission, "check_weights", lambda job: hang.wait(60))
    try:
        lines = refused(job_file, "model.kv_repeat=2", "input.audio_column=sound")
    finally:
        hang.set()
    assert len(lines) == 3
    assert "model: whether it can be used isn't known after 0.05 s" in lines[-1]
