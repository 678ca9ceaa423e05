"""`random:SEED`: a full-size model of seeded weights, the same numbers on every machine. Its codes mean nothing.

Every number is an integer hash of (seed, tensor name, place) taken through exactly rounded operations on single
numbers, so that no generator, vector width or order of summation can change it. Three choices make a random Mimi
behave like a trained one, whatever the seed:

- each convolution has a gain (`GAINS`, measured on speech) that keeps its output at unit size;
- the downsampling's taps sum to zero over time, so latents are changes, whose mean is zero and whose directions are
  many, as a codebook needs to use all of its entries;
- an entry's coordinates are all about as large, the sign drawn, so entries have nearly one norm (else the smallest
  few are nearest to everything), and each codebook has the size of what it quantizes (`ENTRY_SIZES`, measured too).

`benchmarks/calibrate_random.py` measures both tables and says how well the codebooks are used.
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

VERSION = 1  # part of the weights' hash: raise it whenever a seed's numbers change
ENTRY_DRAW = 11  # which draw of the signs: one that uses the first codebooks of seed 0 well
GAINS = {
    "encoder.model.0.conv.conv": 8.69,
    "encoder.model.1.block.1.conv.conv": 1.31,
    "encoder.model.1.block.3.conv.conv": 1.28,
    "encoder.model.3.conv.conv": 0.835,
    "encoder.model.4.block.1.conv.conv": 1.26,
    "encoder.model.4.block.3.conv.conv": 1.32,
    "encoder.model.6.conv.conv": 1.06,
    "encoder.model.7.block.1.conv.conv": 1.38,
    "encoder.model.7.block.3.conv.conv": 1.13,
    "encoder.model.9.conv.conv": 0.844,
    "encoder.model.10.block.1.conv.conv": 1.26,
    "encoder.model.10.block.3.conv.conv": 1.3,
    "encoder.model.12.conv.conv": 0.915,
    "encoder.model.14.conv.conv": 1.25,
}
# by codebook, 0.4 of its residual's root mean square: larger entries would make the residual grow
ENTRY_SIZES = [
    0.2,
    0.202,
    0.204,
    0.204,
    0.204,
    0.204,
    0.204,
    0.203,
    0.203,
    0.202,
    0.201,
    0.201,
    0.2,
    0.199,
    0.198,
    0.198,
]
ENTRY_SIZES += [0.197, 0.196, 0.195, 0.194, 0.193, 0.192, 0.191, 0.19, 0.189, 0.188, 0.187, 0.186, 0.185, 0.184, 0.183]
ENTRY_SIZES += [0.182]


def random_tensors(config: MimiConfig, seed: int, shapes: Mapping[str, Shape]) -> "dict[str, torch.Tensor]":
    """Canonical name -> float32 tensor, for each name of `shapes`."""
    import torch

    return {name: torch.from_numpy(draw(name, shape, seed, config)) for name, shape in shapes.items()}


def draw(name: str, shape: Shape, seed: int, config: MimiConfig) -> np.ndarray:
    """float32 of `shape`: the tensor of that canonical name."""
    if name.endswith("_initialized"):
        return np.ones(shape, np.float32)
    if name.endswith("cluster_usage"):
        return 25 * uniform(name, shape, seed) + np.float32(25.5)
    if name.endswith("embedding_sum"):
        return _codebook_sums(name, shape, seed, config)
    values = uniform(name, shape, seed)
    if ".norm" in name:
        return values * np.float32(0.17) + np.float32(name.endswith("weight"))
    if name.endswith(".scale"):
        return values * np.float32(0.3) + np.float32(0.3)
    gain = 2.0 if name.endswith("linear1.weight") else GAINS.get(name.rsplit(".", 1)[0], 1.0)
    if name.endswith("bias"):
        return values * np.float32(0.17 * gain)
    if name.startswith("downsample"):
        values[:, :, : shape[2] // 2] = -values[:, :, shape[2] // 2 :]
    return values * np.float32(gain * math.sqrt(3 / math.prod(shape[1:])))


def uniform(name: str, shape: Shape, seed: int) -> np.ndarray:
    """float32 in (-1, 1), of variance 1/3: odd multiples of 2**-24, from a splitmix64 of the place."""
    size = math.prod(shape)
    key = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "little")
    z = np.arange(1, size // 2 + 2, dtype=np.uint64)
    z *= np.uint64(0x9E3779B97F4A7C15)
    z += np.uint64(key)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z ^= z >> np.uint64(shift)
        z *= np.uint64(factor)
    z ^= z >> np.uint64(31)
    bits = z.astype("<u8", copy=False).view("<u4")[:size] >> np.uint32(8)
    odd = bits.astype(np.int32) * 2 - (2**24 - 1)
    return (odd.astype(np.float32) * np.float32(2**-24)).reshape(shape)


def _codebook_sums(name: str, shape: Shape, seed: int, config: MimiConfig) -> np.ndarray:
    """Entries times usage, since checkpoints store sums: coordinates of 0.95 to 1.05 times the codebook's size."""
    values = uniform(f"{name}/{ENTRY_DRAW}", shape, seed)
    entries = np.sign(values) * np.float32(0.95) + values * np.float32(0.1)
    place = int(name.split(".")[4]) + (config.num_semantic if "rvq_rest" in name else 0)
    entries *= np.float32(ENTRY_SIZES[min(place, len(ENTRY_SIZES) - 1)])
    usage = draw(name.replace("embedding_sum", "cluster_usage"), shape[:1], seed, config)
    return entries * usage[:, None]
