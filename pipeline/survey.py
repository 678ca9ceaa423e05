"""A look at a running cluster before a job starts there: its nodes, and what each of them sees of the job's files.

It is done by a process of its own: where a cluster doesn't answer, or doesn't take our token, Ray waits for minutes
and writes to stderr. That process is bounded and its words are read.
"""

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from pipeline.errors import RunDirError
from pipeline.nodes import Node, nodes_of

CONNECT_S = 5.0
SURVEY_S = 90.0  # a node may have to start a Python process for the look
PROBES = "mimi-jobs-probe-"
MODE = "RAY_AUTH_MODE"
REFUSAL = "InvalidAuthToken"
TOKEN_REMEDY = "set RAY_AUTH_TOKEN (or ~/.ray/auth_token) to the token of the cluster's head"


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found. The nodes in `unseen` and `without_package` are named."""

    nodes: tuple[Node, ...]
    unseen: dict[str, tuple[str, ...]]  # path asked about -> nodes where it is another file, or none
    without_package: tuple[str, ...]  # nodes that can't import what an actor runs


def survey(address: str, files: Mapping[str, int | None] | None = None, folder: str | None = None) -> Survey:
    """Look at the cluster at `address` (auto or HOST:PORT) and leave it again. RunDirError where it can't be joined.

    files: local path -> size in bytes (None: only whether it's there), to be looked for on each node. folder: a local
    folder, or one to be, that each node must share; a file is put there, or above it, for the time of the look.
    """
    if address != "auto":
        _check_reachable(address)
    with _mark(folder) as mark:
        looked_for = dict(files or {}) | ({mark: None} if mark else {})
        found = _ask(address, looked_for)
    unseen = {path: tuple(names) for path, names in found["unseen"].items()}
    if mark in unseen and folder is not None:
        unseen[folder] = unseen.pop(mark)
    return Survey(tuple(Node(**node) for node in found["nodes"]), unseen, tuple(found["without_package"]))


def _check_reachable(address: str) -> None:
    """Ray tries an address where nothing listens for minutes; `auto` may have found one that is no more."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error) or "no answer"
        remedy = "give the address that `ray start --head` printed"
        raise RunDirError(f"ray.address: nothing answers at {address} ({why.lower()}), {remedy}") from None


@contextlib.contextmanager
def _mark(folder: str | None) -> Iterator[str | None]:
    """A file in the folder, or in the first one above it that is there: who sees it sees the same folder."""
    if folder is None:
        yield None
        return
    above = Path(folder)
    while not above.is_dir():
        above = above.parent
    path = above / f"{PROBES}{secrets.token_hex(8)}"
    try:
        path.touch()
    except OSError as error:
        raise RunDirError(f"output.path: {above} can't be written to ({error.strerror})") from None
    try:
        yield str(path)
    finally:
        path.unlink(missing_ok=True)


def _ask(address: str, files: Mapping[str, int | None]) -> dict[str, Any]:
    """What the surveying process answers; leaves RAY_AUTH_MODE as this cluster wants it."""
    request = json.dumps({"address": address, "files": files})
    answer, words = _run(request, {})
    if REFUSAL in words and MODE not in os.environ:
        answer, words = _run(request, {MODE: "token"})
        if answer:
            os.environ[MODE] = "token"
    if REFUSAL in words or "AuthenticationError" in words:
        raise RunDirError(f"ray.address: the Ray cluster at {address} wants a token, {TOKEN_REMEDY}")
    if not answer:
        last = [line.strip() for line in words.splitlines() if line.strip()][-1:]
        raise RunDirError(f"ray.address: can't join a Ray cluster at {address}: {' '.join(last)}, is it running?")
    found = json.loads(answer)
    if "refused" in found:
        raise RunDirError(found["refused"])
    return found


def _run(request: str, environment: dict[str, str]) -> tuple[str, str]:
    """The process' stdout and stderr. It ends with the first word that a cluster refuses us: Ray would go on trying.

    It's started where no package of the user's can stand in for ours.
    """
    ours = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join([ours, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-P", "-c", "from pipeline.survey import main; main()"]
    with (
        tempfile.TemporaryDirectory(prefix=PROBES) as empty,
        tempfile.TemporaryFile("w+") as asked,
        tempfile.TemporaryFile("w+") as answer,
        tempfile.TemporaryFile("w+") as words,
    ):
        asked.write(request)
        asked.seek(0)
        env = {**os.environ, "PYTHONPATH": path, **environment}
        process = subprocess.Popen(command, stdin=asked, stdout=answer, stderr=words, cwd=empty, env=env)
        deadline = time.monotonic() + SURVEY_S
        while process.poll() is None and REFUSAL not in _text(words) and time.monotonic() < deadline:
            time.sleep(0.05)
        late = process.poll() is None and time.monotonic() >= deadline
        process.kill()
        process.wait()
        return _text(answer), _text(words) + (f"\nno answer within {SURVEY_S:g} s" if late else "")


def _text(file: TextIO) -> str:
    return os.pread(file.fileno(), 1 << 20, 0).decode(errors="replace")


# ---------------------------------------------------------------- in the surveying process


def main() -> None:
    """Read a request from stdin, answer on stdout."""
    request = json.load(sys.stdin)
    answer = os.dup(1)
    os.dup2(2, 1)  # whatever Ray prints isn't the answer
    try:
        found = _survey_here(request["address"], request["files"])
    except RunDirError as error:
        found = {"refused": str(error)}
    with open(answer, "w") as sink:
        json.dump(found, sink)


def _survey_here(address: str, files: dict[str, int | None]) -> dict[str, Any]:
    import logging

    import ray
    from ray._private.services import canonicalize_bootstrap_address_or_die

    from pipeline.cluster import PREFIX, use_token

    try:
        address = canonicalize_bootstrap_address_or_die(address)
    except ConnectionError:
        remedy = "start one with `ray start --head`, or give HOST:PORT or local"
        raise RunDirError(f"ray.address: is {address}, and no Ray cluster runs on this machine, {remedy}") from None
    _check_reachable(address)
    use_token()
    ray.init(address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    alive = [node for node in ray.nodes() if node["Alive"]]
    if any(PREFIX in node.get("RayletSocketName", "") for node in alive):
        raise RunDirError(f"ray.address: {address} is the private Ray of another run, give the address of a cluster")
    found: dict[str, Any] = {"nodes": [asdict(node) for node in nodes_of(alive)], "unseen": {}, "without_package": []}
    if files:
        _look_everywhere(alive, files, found)
    ray.shutdown()
    return found


def _look_everywhere(alive: list[dict[str, Any]], files: dict[str, int | None], found: dict[str, Any]) -> None:
    """Ask every node that has CPUs. A node that leaves meanwhile is none of ours."""
    import ray
    from ray.exceptions import NodeDiedError, TaskUnschedulableError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def look(files: dict[str, int | None]) -> tuple[bool, list[str]]:  # sent by value: it needs nothing of ours there
        from importlib.util import find_spec
        from os import stat

        missing = []
        for path, size in files.items():
            try:
                if stat(path).st_size != size and size is not None:
                    missing.append(path)
            except OSError:
                missing.append(path)
        return find_spec("pipeline") is not None and find_spec("pipeline.actors") is not None, missing

    remote: Any = ray.remote(look)
    asked = {}
    for node in alive:
        if node["Resources"].get("CPU", 0) > 0:
            where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            asked[remote.options(num_cpus=0, scheduling_strategy=where).remote(files)] = nodes_of([node])[0].name
    for ref, name in asked.items():
        try:
            installed, missing = ray.get(ref)
        except (NodeDiedError, TaskUnschedulableError):
            continue
        if not installed:
            found["without_package"].append(name)
        for path in missing:
            found["unseen"].setdefault(path, []).append(name)
