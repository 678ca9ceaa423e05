"""A Mimi small enough for thousands of steps, and what tests do with it."""

from functools import cache

import torch

from mimi.config import MimiConfig
from mimi.layouts import all_shapes
from mimi.model import Mimi
from mimi.random_weights import random_tensors

CONFIG = MimiConfig(
    num_filters=4,
    ratios=(2, 3),
    dimension=16,
    num_layers=2,
    num_heads=2,
    feed_forward=32,
    context=11,
    codebook_size=24,
    codebook_dim=8,
    num_codebooks=4,
)
FRAME = CONFIG.frame_samples  # 12 samples


@cache
def tensors() -> dict[str, torch.Tensor]:
    """The tiny model's tensors, by canonical name."""
    return random_tensors(CONFIG, 0, all_shapes(CONFIG))


@cache
def tiny_mimi(dtype: torch.dtype = torch.float64) -> Mimi:
    """The tiny model; in float64, where the same sum in another order differs by 1e-15."""
    return Mimi(CONFIG, tensors(), num_codebooks=CONFIG.num_codebooks, dtype=dtype)


def noise(samples: int, seed: int) -> torch.Tensor:
    """float64 [samples]: sound that is nowhere silent, so that no two codebook entries are equally near."""
    return torch.rand(samples, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 0.5
