"""Runs of the real command that get killed: start one, find its processes, end some of them, compare what is left."""

import hashlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

COMMAND = (str(Path(sys.executable).parent / "mimi-jobs"),)
MARK = "MIMI_JOBS_TEST_RUN"  # in the environment of every process that a run starts, Ray's included


@dataclass
class Run:
    """A started command, `mimi-jobs` unless said otherwise, and all the processes that descend from it."""

    arguments: list[str]
    log: Path
    command: tuple[str, ...] = COMMAND
    cwd: Path | None = None
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [*self.command, *self.arguments],
                cwd=self.cwd,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, MARK: self.mark},
            )

    def processes(self) -> dict[int, str]:
        """pid -> command line of every live process of this run."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            except OSError:
                continue
        return {pid: command for pid, command in found.items() if command}

    def actors(self) -> list[int]:
        return [pid for pid, command in self.processes().items() if command.startswith("ray::EncodeWorker")]

    def kill(self, what: str) -> int:
        """SIGKILL the `driver`, one `actor` or the whole `group`; how many processes that were."""
        pids = {"driver": [self.process.pid], "actor": self.actors()[:1], "group": list(self.processes())}[what]
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return len(pids)

    def wait(self, timeout_s: float = 300) -> int:
        return self.process.wait(timeout_s)

    def kill_rest(self) -> None:
        self.kill("group")
        self.process.wait(30)


def wait_until(condition, timeout_s: float = 120, every_s: float = 0.05) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(every_s)
    return False


def parts_of(out: Path) -> list[Path]:
    return sorted((out / "_state").glob("*/part-*.arrow"))


def markers_of(out: Path) -> list[Path]:
    return sorted(path for path in (out / "_state").glob("*.json") if path.stem.isdigit())


def rows_of(out: Path) -> dict[tuple, str]:
    """(table, shard, row, channel) -> a digest of the row, encoded or failed. AssertionError on a duplicate."""
    rows: dict[tuple, str] = {}
    for folder in ("data", "errors", "skipped"):
        for file in sorted((out / folder).glob("*.parquet")):
            for row in pq.read_table(file).to_pylist():
                identity = (folder, row["shard"], row["row"], row.get("channel"))
                assert identity not in rows, f"twice: {identity}"
                rows[identity] = hashlib.sha256(repr(sorted(row.items())).encode()).hexdigest()
    return rows


def difference(expected: dict[tuple, str], found: dict[tuple, str]) -> Counter[str]:
    """How many rows are lost, were not there before, or have other contents."""
    both = expected.keys() & found.keys()
    return Counter(
        lost=len(expected.keys() - found.keys()),
        added=len(found.keys() - expected.keys()),
        changed=sum(expected[key] != found[key] for key in both),
    )


def leftover(runs: Iterable[Run]) -> list[str]:
    return [command for run in runs for command in run.processes().values()]
