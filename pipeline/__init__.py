"""How a job runs: source -> audio -> engine -> writer, the run directory, and Ray to make one machine many.

`from pipeline import read_codes` reads back what a run wrote; it is imported when it is first asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.codes import StoredCodes, read_codes

__all__ = ["StoredCodes", "read_codes"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from pipeline import codes

        return getattr(codes, name)
    raise AttributeError(f"module 'pipeline' has no attribute {name!r}")
