"""What a user touches: job files, submission checks, the command, status and inspection.

`from jobs import JobConfig, submit, resume, status, inspect, verify, decode, write_report`; each is imported when it is
first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobs.config import JobConfig
    from jobs.decoding import decode
    from jobs.inspection import inspect
    from jobs.report import write_report
    from jobs.status import status
    from jobs.submission import check, resume, submit
    from jobs.verification import verify

_HOMES = {
    "JobConfig": "jobs.config",
    "check": "jobs.submission",
    "decode": "jobs.decoding",
    "inspect": "jobs.inspection",
    "resume": "jobs.submission",
    "status": "jobs.status",
    "submit": "jobs.submission",
    "verify": "jobs.verification",
    "write_report": "jobs.report",
}

__all__ = ["JobConfig", "check", "decode", "inspect", "resume", "status", "submit", "verify", "write_report"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'jobs' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
