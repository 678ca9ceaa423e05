"""The Ray that a run lives on: a private one on this machine, or a running cluster. Started, joined, and cleared away.

A private Ray gets a temporary folder of its own. The folder's name stands in the environment of each of its processes
(they rewrite their command lines), so that whatever a killed driver left behind can be told from everything else and
ended by the next one.
"""

import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import ray
from ray._raylet import Config  # pyright: ignore[reportAttributeAccessIssue]
from ray.exceptions import AuthenticationError

from pipeline.errors import RunDirError

PREFIX = "mimi-jobs-ray-"
MARK = "MIMI_JOBS_PRIVATE_RAY"  # environment of a private Ray's processes: its folder
OBJECT_STORE_BYTES = 128 << 20  # the object store carries no audio and no codes
SHORT_TMP = "/tmp"  # Ray's sockets fail below a long path: 107 bytes in all


@dataclass(frozen=True, slots=True)
class RayPlan:
    """Where the actors run and what each is given."""

    address: str = "local"
    actors: int | Literal["auto"] = "auto"
    cpus_per_actor: float = 1.0
    gpus_per_actor: float = 0.0
    wait_for_resources_s: float = 0.0


@contextlib.contextmanager
def connected(plan: RayPlan, num_actors: int) -> Iterator[str | None]:
    """Ray, started or joined; yields the private Ray's folder, or None on a cluster.

    Ray puts the working directory before site-packages on the workers' path. A user's own `jobs/` there must not
    shadow ours, so Ray is started from an empty folder. What Ray prints goes to its own logs.
    """
    logging.getLogger("ray").setLevel(logging.ERROR)
    folder = None
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
    with contextlib.redirect_stdout(_Discarded()):
        if plan.address == "local":
            folder = tempfile.mkdtemp(prefix=PREFIX, dir=SHORT_TMP)
            Path(folder, "driver.pid").write_text(str(os.getpid()))
            cpus = max(1, round(plan.cpus_per_actor * num_actors + 0.5), os.cpu_count() or 1)
            with _working_directory(folder), _environment(MARK, folder):
                ray.init(
                    address="local",
                    num_cpus=cpus,
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE_BYTES,
                    _temp_dir=folder,
                    **quiet,
                )
        else:
            with tempfile.TemporaryDirectory(prefix=PREFIX) as empty, _working_directory(empty):
                _join(plan.address, quiet)
        try:
            yield folder
        finally:
            ray.shutdown()
            if folder is not None:
                end_private_ray(folder)


def use_token(mode: str | None = None) -> None:
    """Have this process show its token to the clusters that it joins, if `mode` or RAY_AUTH_MODE is `token`.

    Ray reads the variable as it is imported. A token that a cluster doesn't ask for is no harmless thing to Ray:
    actors don't start then. `survey` finds out.
    """
    if mode is not None:
        os.environ["RAY_AUTH_MODE"] = mode
    Config.initialize("")


def _join(address: str, quiet: dict) -> None:
    use_token()
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError, AuthenticationError) as error:
        raise RunDirError(
            f"ray.address: can't join the Ray cluster at {address}: {str(error).splitlines()[0]}; is it running, and "
            "does RAY_AUTH_TOKEN (or ~/.ray/auth_token) hold its token?"
        ) from None


class _Discarded:
    """Stands in for stdout while Ray is connected: Ray's own threads print news of its workers there."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


@contextlib.contextmanager
def _working_directory(folder: str) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


# ---------------------------------------------------------------- what a killed driver leaves


def end_leftovers() -> list[str]:
    """End the private Rays of this user whose driver is gone. Returns their folders; other Rays are not touched."""
    ended = []
    for folder in Path(SHORT_TMP).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            if not _is_alive(int((folder / "driver.pid").read_text())):
                end_private_ray(str(folder))
                ended.append(str(folder))
    return ended


def end_private_ray(folder: str) -> None:
    """End every process of the private Ray in `folder`, and remove the folder."""
    for sign, wait_s in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0)):
        pids = _processes_of(folder)
        if not pids:
            break
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, sign)
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline and any(_is_alive(pid) for pid in pids):
            time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


def _processes_of(folder: str) -> list[int]:
    """The processes of the private Ray in `folder`: those that inherited its mark."""
    if not sys.platform.startswith("linux"):
        return []
    mark, found = f"{MARK}={folder}".encode(), []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
