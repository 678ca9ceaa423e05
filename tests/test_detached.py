"""`submit --detach` against a head with a dashboard on this machine: sent, checked there, run, and told of by files."""

import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.mimi.checkpoints import SMALL, write_random
from tests.torture.killing import Run, leftover, rows_of, wait_until
from tests.torture.torture import make_dataset

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not find_spec("aiohttp_cors"), reason="the Jobs API isn't installed: pip install 'ray[default]'"
    ),
]
BIN = Path(sys.executable).parent
ROWS = 18


@dataclass
class Head:
    """A head of a cluster with one CPU, its dashboard and its token."""

    address: str
    folder: Path  # what Ray keeps on disk, unpacked packages included
    run: Run

    def get(self, path: str) -> Any:
        """What the Jobs API answers; None while nothing does."""
        token = {"Authorization": f"Bearer {os.environ['RAY_AUTH_TOKEN']}"}
        try:
            with urllib.request.urlopen(
                urllib.request.Request(self.address + path, headers=token), timeout=10
            ) as found:
                return json.load(found)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None

    def status(self, job_id: str) -> str:
        job = self.get(f"/api/jobs/{job_id}")
        return job["status"] if job else ""


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    """A Ray of its own: folder, ports, token. Only processes that it started are ended with it."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    monkeypatch.setenv("PATH", str(BIN), prepend=os.pathsep)  # the `python` that jobs are started with
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    port, dashboard, agent, client = free_ports(4)
    folder = Path(tempfile.mkdtemp(prefix="mj-", dir="/tmp"))  # Ray's sockets fail below a long path
    options = [
        *("--head", "--block", "--num-cpus", "1", "--node-ip-address", "127.0.0.1", "--temp-dir", str(folder)),
        *("--port", str(port), "--dashboard-port", str(dashboard), "--dashboard-agent-listen-port", str(agent)),
        *("--ray-client-server-port", str(client), "--include-dashboard", "true"),
        *("--object-store-memory", str(100 << 20), "--disable-usage-stats"),
    ]
    run = Run(["start", *options], tmp_path / "head.log", command=(str(BIN / "ray"),))
    head = Head(f"http://127.0.0.1:{dashboard}", folder, run)
    try:
        started = wait_until(lambda: head.get("/api/jobs/") is not None or run.process.poll() is not None, every_s=0.5)
        assert started and run.process.poll() is None, run.log.read_text()
        yield head
    finally:
        ended = wait_until(lambda: not run.kill("group"))  # while they end, some may still be started
        run.process.wait(30)
        assert ended, leftover([run])
        shutil.rmtree(folder, ignore_errors=True)


def sent_files(head: Head, job_id: str) -> list[Path]:
    """What came to the cluster with the job, as it was unpacked there."""
    package = Path(head.get(f"/api/jobs/{job_id}")["runtime_env"]["working_dir"].rpartition("/")[2]).stem
    (folder,) = head.folder.glob(f"session_2*/runtime_resources/working_dir_files/{package}")
    return [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]


def test_a_detached_job_runs_on_the_cluster_and_takes_no_data_along(head: Head, tmp_path: Path):
    make_dataset(tmp_path / "data", ROWS, seed=1, longest_s=2)
    write_random(tmp_path / "weights", 0, "transformers", SMALL)
    out, job_file = tmp_path / "codes", tmp_path / "job.yaml"
    job_file.write_text(
        "input: {path: ./data, id_column: id}\nmodel: {weights: ./weights, num_codebooks: 4}\noutput: {path: ./codes}\n"
    )
    submit = Run(
        ["submit", str(job_file), "--detach", "--address", head.address], tmp_path / "submit.log", cwd=tmp_path
    )
    assert submit.wait() == 0, submit.log.read_text()
    said = submit.log.read_text()
    (job_id,) = {word for word in said.split() if word.startswith("mimi-jobs-codes-")}
    assert f"job {job_id} has passed its checks there and runs" in said

    assert wait_until(lambda: head.status(job_id) in ("SUCCEEDED", "FAILED", "STOPPED"), every_s=0.5)
    assert head.status(job_id) == "SUCCEEDED", head.get(f"/api/jobs/{job_id}/logs")
    assert len(rows_of(out)) == ROWS

    status = Run(["status", str(out), "--json"], tmp_path / "status.log")
    assert status.wait() == 0, status.log.read_text()
    told = json.loads(status.log.read_text())
    assert (told["state"], told["rows"]) == ("finished", ROWS)

    sent = sent_files(head, job_id)
    assert {path.parts[0] for path in sent} == {"job.yaml", "jobs", "pipeline", "mimi"}
    assert not {path.suffix for path in sent} & {".parquet", ".flac", ".safetensors", ".arrow"}
    assert leftover([submit]) == []
