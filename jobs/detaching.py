"""`submit --detach`: checks a job here, then sends it with our code to a cluster, which checks and runs it.

What is sent is the job file and our three packages; no data, no weights, no credentials. The cluster's Python needs
the libraries that we need, and not us.
"""

import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs.checks import check_input, check_output, check_weights
from jobs.job_file import COMMAND_LINE, Job, read_job
from jobs.manifest import with_absolute_paths, without_secrets
from pipeline.errors import ConfigError

PACKAGES = ("jobs", "pipeline", "mimi")
ENTRYPOINT = "python -m jobs.cli submit job.yaml"  # its folder comes first on the path, so that nothing shadows us
PATIENCE_S = 120.0  # for the cluster to start and check the job; it goes on without us
LAST_LINES = 5
RAYS_OWN = re.compile(r"^\[?\d{4}-\d\d-\d\d[ T].*(INFO|WARNING)|^Running entrypoint for job")


@dataclass(frozen=True, slots=True)
class Detached:
    """A job that a cluster has taken. `begun`: it has passed the checks there."""

    job_id: str
    address: str
    output: str
    begun: bool


def submit_detached(job_file: str, overrides: Sequence[str] = (), *, address: str) -> Detached:
    """Check a job and hand it to the cluster whose dashboard is at `address`.

    Raises `ConfigError` where it is refused here or, at its start, there.
    """
    job = read_job(job_file, overrides)
    _check_here(job)
    config = job.require()
    written = with_absolute_paths(config.written())
    written["ray"] = {**written["ray"], "address": "auto"}
    output = written["output"]["path"]
    name = re.sub(r"[^A-Za-z0-9]+", "-", Path(output).name).strip("-").lower() or "job"
    begun = f"{Path(output).name}, "  # in the line that `submit` says once it is past its checks
    from pipeline.handover import hand_over

    with tempfile.TemporaryDirectory(prefix="mimi-jobs-detach-") as folder:
        build_folder(Path(folder), written)
        told = hand_over(
            address,
            Path(folder),
            ENTRYPOINT,
            job_id=f"mimi-jobs-{name[:40]}-{secrets.token_hex(4)}",
            metadata={"output": output},
            begun=begun,
            patience_s=PATIENCE_S,
        )
    if told.failed:
        raise ConfigError(
            _why(told.log) or [f"{address}: job {told.job_id} failed and says nothing, see the dashboard"]
        )
    return Detached(told.job_id, address, output, begun in told.log)


def _check_here(job: Job) -> None:
    """All checks but those of resources, which are the cluster's."""
    if not job.problems:
        check_output(job)
    checked = check_input(job), check_weights(job)
    config = job.require() if not job.problems else None
    for name in without_secrets(config.written())[1] if config is not None else ():
        job.problems.append(
            f"{COMMAND_LINE}: {name}: is a literal that the cluster would store, give ${{NAME}} and set it on the nodes"
        )
    if job.problems or None in checked:
        raise ConfigError(job.problems)


def build_folder(folder: Path, written: dict) -> None:
    """Put there what is sent: the job file as written, and our packages."""
    import yaml

    (folder / "job.yaml").write_text(yaml.safe_dump(written, sort_keys=False, allow_unicode=True), encoding="utf-8")
    home = Path(__file__).resolve().parent.parent
    for package in PACKAGES:
        shutil.copytree(home / package, folder / package, ignore=shutil.ignore_patterns("__pycache__", ".*"))


def _why(log: str) -> list[str]:
    """The last lines of a log that aren't Ray's own."""
    lines = [line.strip() for line in log.splitlines()]
    return [line for line in lines if line and not RAYS_OWN.search(line)][-LAST_LINES:]


def follow_lines(done: Detached) -> list[str]:
    """What a person may want to do next."""
    at = f"--address {done.address} {done.job_id}"
    begun = "has passed its checks there and runs" if done.begun else "is taken, its checks there aren't done yet"
    return [
        f"job {done.job_id} {begun}",
        f"follow it:  ray job logs --follow {at}",
        f"progress:   mimi-jobs status {done.output}",
        f"stop it:    ray job stop {at}   (mimi-jobs resume {done.output} carries on)",
    ]


def dashboard_address(given: str | None) -> str:
    """The address to send a job to. ConfigError where there's none."""
    address = given or os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS", "")
    if not address.startswith(("http://", "https://")):
        what = f"is {address}, which is no URL" if address else "needs a cluster"
        raise ConfigError([f"{COMMAND_LINE}: --detach: {what}, add --address http://HOST:8265"])
    return address
