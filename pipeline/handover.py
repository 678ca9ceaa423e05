"""Hands a job to a cluster through Ray's Jobs API, and reads how it began. What a job is made of is the caller's."""

import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import ConfigError, MimiJobsError
from pipeline.survey import TOKEN_REMEDY

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class HandedOver:
    """A job on a cluster. `log` is what it has said so far; `failed`: it has ended, and not well."""

    job_id: str
    failed: bool
    log: str


def hand_over(
    address: str, folder: Path, entrypoint: str, *, job_id: str, metadata: dict[str, str], begun: str, patience_s: float
) -> HandedOver:
    """Send `folder` as the job's working directory, start `entrypoint`, and watch until it has begun.

    begun: a text that its log has once it has. Returns earlier where the job ends, later than `patience_s` never.
    Raises `ConfigError` where the cluster can't be asked.
    """
    client = _client(address)
    try:
        client.submit_job(
            entrypoint=entrypoint,
            submission_id=job_id,
            runtime_env={"working_dir": str(folder)},
            metadata=metadata,
        )
        deadline = time.monotonic() + patience_s
        while True:
            status = client.get_job_status(job_id)
            log = client.get_job_logs(job_id)
            if status.is_terminal() or begun in log or time.monotonic() > deadline:
                return HandedOver(job_id, status.is_terminal() and status.name != "SUCCEEDED", log)
            time.sleep(POLL_S)
    except (RuntimeError, OSError) as error:
        raise MimiJobsError(f"--address: {address} didn't take the job: {_first_line(error)}") from None


def _client(address: str) -> "JobSubmissionClient":
    try:
        from ray.exceptions import AuthenticationError
        from ray.job_submission import JobSubmissionClient

        from pipeline.cluster import use_token

    except ImportError:
        remedy = "pip install 'mimi-jobs[cluster]'"
        raise ConfigError([f"command line: --detach: the Jobs API isn't installed here, {remedy}"]) from None
    for name in ("ray", "ray.dashboard.modules.dashboard_sdk"):  # importing them has set other levels
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        use_token(os.environ.get("RAY_AUTH_MODE", "token"))
        return JobSubmissionClient(address)
    except AuthenticationError:
        raise ConfigError([f"command line: --address: {address} wants a token, {TOKEN_REMEDY}"]) from None
    except (RuntimeError, ConnectionError, ValueError) as error:
        remedy = "give the address of the dashboard, http://HOST:8265"
        raise ConfigError([f"command line: --address: {address}: {_first_line(error)}, {remedy}"]) from None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
