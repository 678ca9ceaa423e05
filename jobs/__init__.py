"""What a user touches: job files, submission checks, the command, status and inspection.

`from jobs import JobConfig, submit, resume, status, inspect`; each is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobs.config import JobConfig
    from jobs.inspection import inspect
    from jobs.status import status
    from jobs.submission import check, resume, submit

_HOMES = {
    "JobConfig": "jobs.config",
    "check": "jobs.submission",
    "inspect": "jobs.inspection",
    "resume": "jobs.submission",
    "status": "jobs.status",
    "submit": "jobs.submission",
}

__all__ = ["JobConfig", "check", "inspect", "resume", "status", "submit"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'jobs' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
