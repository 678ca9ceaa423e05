"""The command itself: exit status, one line for each error, and what it prints."""

import json
import subprocess
import sys

import pytest

from jobs import cli, submission
from pipeline.errors import RunDirError
from tests.jobs.making import make_run, publish, random_codes


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        cli.main(list(arguments))
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.fixture
def finished_run(job_file):
    run = make_run(job_file)
    for shard in run.shards():
        publish(run, shard, [random_codes(25, seed=shard.index)])
    return run.storage.root


def test_help_lists_commands_that_exist(capsys):
    assert command("--help") == 0
    shown = capsys.readouterr().out
    listed = [line.split()[0] for line in shown.partition("Commands:")[2].splitlines() if line.strip()]
    assert {"check", "submit", "resume", "status", "inspect"} <= set(listed)
    for name in listed:
        assert command(name, "--help") == 0
        assert capsys.readouterr().out.startswith(f"Usage: mimi-jobs {name} ")
    assert command() == 0 and capsys.readouterr().out == shown


def test_version(capsys):
    assert command("--version") == 0
    assert capsys.readouterr().out.startswith("mimi-jobs 0.")


@pytest.mark.parametrize("arguments", [["sbmit"], ["submit"], ["status", "--jsn", "x"], ["inspect", "a", "b"]])
def test_a_wrong_command_line_is_one_line_and_refused(arguments, capsys):
    assert command(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1 and err.startswith("command line: ")


def test_help_and_a_refusal_need_no_heavy_import():
    code = """
import sys
from jobs.cli import main
try:
    main(["--help"])
except SystemExit:
    heavy = {"numpy", "pyarrow", "pydantic", "datasets", "torch", "ray", "rich", "pandas", "fsspec"}
    print("heavy:", sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "heavy: []"


def test_check_shows_the_plan(job_file, capsys):
    assert command("check", job_file) == 0
    out = " ".join(capsys.readouterr().out.split())
    for words in (
        "read as parquet",
        "2 shards, 4 rows",
        "audio: it's the one struct of bytes and path",
        "text: string number: int64",
        "0-0: 16000 Hz, mono, 0.20 s",
        "1-1: unreadable: ",
        "random:0, random layout, 8 of 32 codebooks, float32",
        "about 1.33 s of audio",
        "weights are RANDOM (random:0)",
    ):
        assert words in out, words


def test_a_refused_job_prints_its_problems_and_exits_2(job_file, tmp_path, capsys):
    for name in ("check", "submit"):
        assert command(name, job_file, "model.kv_repeat=2", "input.audio_column=sound") == 2
        out, err = capsys.readouterr()
        assert out == "" and [line.split(": ")[1] for line in err.splitlines()] == [
            "model.kv_repeat", "input.audio_column"
        ]  # fmt: skip
    assert not (tmp_path / "out").exists()


def test_debug_gives_the_traceback(job_file):
    with pytest.raises(Exception, match="must be the integer 1"):
        cli.main(["submit", job_file, "model.kv_repeat=2", "--debug"])


def outcome(**changes):
    from pipeline.driver import RunOutcome

    values = {
        "finished": True, "interrupted": False, "message": None, "rows": 4, "encoded": 3, "failed": 1, "skipped": 0,
        "frames": 20, "audio_seconds": 1.5, "seconds": 2.0,
    }  # fmt: skip
    return RunOutcome(**{**values, **changes})


@pytest.mark.parametrize(
    ("ended", "status", "words"),
    [
        ({}, 0, "4 rows: 3 encoded, 1 failed"),
        ({"finished": False, "message": "the disk is full"}, 1, "the disk is full; carry on with: mimi-jobs resume"),
        ({"finished": False, "interrupted": True}, 130, "interrupted; carry on with: mimi-jobs resume"),
    ],
)
def test_the_exit_status_says_how_the_run_ended(job_file, monkeypatch, capsys, ended, status, words):
    monkeypatch.setattr(submission, "_drive", lambda prepared, run, console: outcome(**ended))
    assert command("submit", job_file) == status
    out, err = capsys.readouterr()
    assert out == "" and words in err
    assert "weights are RANDOM (random:0)" in err


def test_a_run_directory_that_fails_on_the_way_exits_1(job_file, monkeypatch, capsys):
    def fail(*_):
        raise RunDirError("out: no space left")

    monkeypatch.setattr(submission, "_drive", fail)
    assert command("submit", job_file) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "out: no space left"


def test_what_a_submission_hands_to_the_driver(job_file, tmp_path, monkeypatch):
    from pipeline import driver

    requests = []
    monkeypatch.setattr(driver, "run", lambda request, console: requests.append(request) or outcome())
    overrides = ["audio.max_failed=0.5", "model.num_codebooks=4", "ray.actors=1", "output.checkpoint_seconds=9"]
    assert command("submit", job_file, *overrides) == 0
    assert command("resume", str(tmp_path / "out"), "model.slots=2", "--retry-failed") == 0
    first, second = requests
    assert (first.max_failed, first.model.num_codebooks, first.model.slots, first.ray.actors) == (0.5, 4, 1, 1)
    assert (first.output.checkpoint_seconds, first.output.path) == (9, str(tmp_path / "out"))
    assert first.weights_sha256 == first.run.manifest["weights"]["sha256"]
    assert (first.retry_failed, second.retry_failed) == (False, True)
    assert (second.model.num_codebooks, second.model.slots, second.max_failed) == (4, 2, 0.5)


def test_resume_of_a_finished_run_imports_no_ray(finished_run):
    code = f"""
import sys
from jobs.cli import main
try:
    main(["resume", {finished_run!r}])
except SystemExit as end:
    print(end.code, [name for name in ("ray", "torch", "datasets") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "0 []"


def test_resume_of_a_finished_run_does_nothing_and_says_so(finished_run, capsys):
    assert command("resume", finished_run) == 0
    assert capsys.readouterr().err.startswith("nothing left to do: 2 rows: 2 encoded, 0 failed; 50 frames")


@pytest.mark.parametrize("name", ["resume", "status"])
def test_where_no_run_is_one_line_says_so(tmp_path, capsys, name):
    assert command(name, str(tmp_path)) == 2
    out, err = capsys.readouterr()
    assert out == "" and "is not a run" in err and len(err.splitlines()) == 1


def test_status_prints_a_table_or_json(finished_run, capsys):
    assert command("status", finished_run) == 0
    out = capsys.readouterr().out
    assert "finished" in out and "2 of 2 done" in out and "weights are RANDOM (random:0)" in out
    assert command("status", finished_run, "--json") == 0
    assert json.loads(capsys.readouterr().out)["state"] == "finished"


def test_inspect_prints_tables_or_json(finished_run, capsys):
    assert command("inspect", finished_run) == 0
    out = capsys.readouterr().out
    assert "2 in 2 files" in out and "of 2048" in out and "weights are RANDOM (random:0)" in out
    assert command("inspect", finished_run, "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 2


def test_inspect_shows_one_clip(finished_run, capsys):
    assert command("inspect", finished_run, "--key", "1-0") == 0
    out = capsys.readouterr().out
    assert "train-00001-of-00002.parquet" in out and "9 more" in out
    assert command("inspect", finished_run, "--key", "1-0", "--json") == 0
    (clip,) = json.loads(capsys.readouterr().out)
    assert clip["codes"] == random_codes(25, seed=1).tolist() and clip["columns"]["text"] == "words"
    assert command("inspect", finished_run, "--key", "no such") == 1
    assert "no row has the key 'no such'" in capsys.readouterr().err


def test_inspect_reports_what_is_whole_and_names_what_is_not(finished_run, capsys):
    path = f"{finished_run}/data/train-00000-of-00002.parquet"
    with open(path, "r+b") as file:
        file.truncate(100)
    assert command("inspect", f"{finished_run}/data") == 1
    out, err = capsys.readouterr()
    assert "1 in 1 files" in out
    assert err.splitlines() == [f"{path}: not a parquet file, or cut short"]


def test_markup_in_names_is_shown_as_it_is(job_file, capsys):
    run = make_run(job_file)
    publish(run, next(iter(run.shards())), [random_codes(5)])
    assert command("inspect", run.storage.root, "--key", "[red]") == 1
    assert "'[red]'" in capsys.readouterr().err


def test_an_interrupt_exits_130(monkeypatch, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupt)
    assert command("check", "x") == 130


def test_a_bug_is_one_line_too(monkeypatch, capsys):
    def fail(*_, **__):
        raise ZeroDivisionError("oh no")

    monkeypatch.setattr(cli, "app", fail)
    assert command("check", "x") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("internal error: ZeroDivisionError: oh no (--debug")


def test_a_reader_that_leaves_is_no_error(finished_run):
    program = f"{sys.executable} -c 'from jobs.cli import main; main()' inspect {finished_run} --json | true"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
