"""What is sent to a cluster, and what is refused before anything is. The sending itself is in `test_detached.py`."""

import sys

import pytest
import yaml

from jobs.cli import main
from jobs.detaching import build_folder, dashboard_address, submit_detached
from pipeline.errors import ConfigError

MOST_BYTES = 2 << 20


def test_what_is_sent_is_the_job_and_our_code_and_small(tmp_path):
    build_folder(tmp_path, {"input": {"path": "/data/ü"}})
    assert {path.name for path in tmp_path.iterdir()} == {"job.yaml", "jobs", "pipeline", "mimi"}
    assert yaml.safe_load((tmp_path / "job.yaml").read_text()) == {"input": {"path": "/data/ü"}}
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    assert not [path for path in files if path.suffix == ".pyc"]
    assert (tmp_path / "pipeline" / "worker.py").exists() and list((tmp_path / "jobs" / "templates").iterdir())


def test_a_literal_secret_is_not_sent(job_file):
    override = "output.storage_options={secret: hunter2}"
    with pytest.raises(ConfigError) as raised:
        submit_detached(job_file, [override], address="http://127.0.0.1:1")
    (line,) = raised.value.problems
    assert "output.storage_options.secret" in line and "hunter2" not in line


def test_problems_of_the_job_are_found_here(job_file):
    with pytest.raises(ConfigError) as raised:
        submit_detached(job_file, ["input.audio_column=sound", "model.kv_repeat=2"], address="http://127.0.0.1:1")
    assert {line.split(": ")[1] for line in raised.value.problems} == {"input.audio_column", "model.kv_repeat"}


def test_without_the_jobs_api_the_remedy_is_named(job_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray.job_submission", None)
    with pytest.raises(ConfigError, match=r"pip install 'mimi-jobs\[cluster\]'"):
        submit_detached(job_file, address="http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--detach"], "--address http://HOST:8265"), (["--address", "http://head:8265"], "goes with --detach")],
)
def test_detach_and_address_go_together(job_file, monkeypatch, capsys, arguments, words):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(["submit", job_file, *arguments])
    assert ended.value.code == 2 and words in capsys.readouterr().err


def test_the_address_may_come_from_rays_own_variable(monkeypatch):
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://head:8265")
    assert dashboard_address(None) == "http://head:8265"
    assert dashboard_address("https://other:1") == "https://other:1"
    with pytest.raises(ConfigError, match="no URL"):
        dashboard_address("head:6379")
