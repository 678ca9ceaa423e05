"""`random:SEED`: a full-size model of seeded weights, the same numbers on every machine. Its codes mean nothing.

Every number comes from an integer hash of (seed, tensor name, place) through exact operations, so no generator,
vector width or summation order can change it. Layer scales are in `random_scales.py`.
"""

import hashlib
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from mimi.config import MimiConfig
from mimi.layouts import Shape

if TYPE_CHECKING:
    import torch

VERSION = 1


def random_tensors(config: MimiConfig, seed: int, shapes: Mapping[str, Shape]) -> "dict[str, torch.Tensor]":
    """Canonical name -> float32 tensor, for each name of `shapes`."""
    import torch

    return {name: torch.from_numpy(_draw(name, shape, seed, config)) for name, shape in shapes.items()}


def uniform(name: str, shape: Shape, seed: int) -> np.ndarray:
    """float32 in (-1, 1), of variance 1/3: odd multiples of 2**-24 from a splitmix64 of the place."""
    key = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "little")
    z = np.arange(1, math.prod(shape) // 2 + 2, dtype=np.uint64)
    z *= np.uint64(0x9E3779B97F4A7C15)
    z += np.uint64(key)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    halves = z.astype("<u8", copy=False).view("<u4")[: math.prod(shape)]
    return (
        ((halves >> np.uint32(8)).astype(np.int32) * 2 - (2**24 - 1)).astype(np.float32) * np.float32(2**-24)
    ).reshape(shape)


def _draw(name: str, shape: Shape, seed: int, config: MimiConfig) -> np.ndarray:
    values = uniform(name, shape, seed)
    if name.endswith("cluster_usage"):
        return 25 * (values + 1) + np.float32(0.5)
    if name.endswith("embedding_sum"):
        usage = _draw(name.replace("embedding_sum", "cluster_usage"), shape[:1], seed, config)
        return np.sign(values) * np.float32(0.5) * usage[:, None]
    if "norm" in name:
        return values * np.float32(0.1) + np.float32(name.endswith("weight"))
    if name.endswith("scale"):
        return (values + 1) * np.float32(0.15)
    if name.endswith("bias"):
        return values * np.float32(0.17)
    fan_in = math.prod(shape[1:])
    return values * np.float32(math.sqrt(3 / fan_in))
