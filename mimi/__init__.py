"""Mimi, the streaming neural audio codec (Défossez et al. 2024, arXiv:2410.00037), in plain PyTorch.

`from mimi import Mimi`. Importing the package alone doesn't import torch, so that checks of a job file are quick.
"""

from typing import TYPE_CHECKING, Any

from mimi.errors import CheckpointError

if TYPE_CHECKING:
    from mimi.model import Mimi, Step

__all__ = ["CheckpointError", "Mimi", "Step"]


def __getattr__(name: str) -> Any:
    if name in ("Mimi", "Step"):
        from mimi import model

        return getattr(model, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
