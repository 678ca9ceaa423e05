"""Measures the tables of `mimi/random_weights.py` on recordings of speech, and how well random codebooks are used.

usage: python benchmarks/calibrate_random.py RECORDING... [--seeds 0 1 2]
Prints GAINS and ENTRY_SIZES as they should be committed (from the first seed), then for each seed the entries in use
and the effective dimension of the latents. The entries in use depend on how much speech there is: give some minutes.
"""

import argparse
import math
from collections.abc import Mapping

import numpy as np
import soundfile
import soxr
import torch
from torch import Tensor
from torch.nn import functional

from mimi import random_weights
from mimi.config import MimiConfig
from mimi.layouts import all_shapes, seanet_indices
from mimi.model import Mimi

CONFIG = MimiConfig()
ENTRY_TO_RESIDUAL = 0.4  # size of entries, by the residual's: larger ones would make the residual grow
CALIBRATION_SECONDS = 16


def read(path: str) -> np.ndarray:
    """Mono float32 at 24 kHz."""
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    return soxr.resample(samples.mean(1), rate, CONFIG.sample_rate, quality="HQ")


def measure_gains(clips: list[np.ndarray], seed: int) -> dict[str, float]:
    """Each convolution's gain: the one that gives its output, over channels and time, a standard deviation of 1."""
    random_weights.GAINS.clear()
    shapes = {name: shape for name, shape in all_shapes(CONFIG).items() if name.startswith("encoder.")}
    tensors = random_weights.random_tensors(CONFIG, seed, shapes)
    size = min([CALIBRATION_SECONDS * CONFIG.sample_rate, *map(len, clips)])
    size -= size % CONFIG.frame_samples
    gains: dict[str, float] = {}

    def convolve(h: Tensor, prefix: str, stride: int = 1) -> Tensor:
        weight = tensors[prefix + ".weight"]
        padded = functional.pad(h, (weight.shape[2] - stride, 0))
        y = functional.conv1d(padded, weight, tensors[prefix + ".bias"], stride)
        gains[prefix] = float(f"{1 / y.std():.3g}")
        return y * gains[prefix]

    h = convolve(torch.from_numpy(np.stack([clip[:size] for clip in clips]))[:, None], "encoder.model.0.conv.conv")
    for index, ratio in zip(seanet_indices(CONFIG), CONFIG.ratios, strict=True):
        hidden = convolve(functional.elu(h), f"encoder.model.{index}.block.1.conv.conv")
        h = h + convolve(functional.elu(hidden), f"encoder.model.{index}.block.3.conv.conv")
        h = convolve(functional.elu(h), f"encoder.model.{index + 2}.conv.conv", ratio)
    convolve(functional.elu(h), f"encoder.model.{3 * len(CONFIG.ratios) + 2}.conv.conv")
    return gains


def latents_of(clips: list[np.ndarray], seed: int) -> tuple[Tensor, Mapping[str, Tensor]]:
    """[frames, dimension] of all clips, and the tensors that made them."""
    names = ("encoder", "downsample", "quantizer")
    shapes = {name: shape for name, shape in all_shapes(CONFIG).items() if name.startswith(names)}
    tensors = random_weights.random_tensors(CONFIG, seed, shapes)
    mimi = Mimi(CONFIG, tensors, num_codebooks=1)
    found = []
    for clip in clips:
        state = mimi.new_state(1)
        whole = clip[: len(clip) // CONFIG.frame_samples * CONFIG.frame_samples]
        for chunk in torch.from_numpy(whole)[None, None].split(50 * CONFIG.frame_samples, 2):
            found.append(mimi.latents_step(chunk, state)[0])
    return torch.cat(found), tensors


def walk(latents: Tensor, tensors: Mapping[str, Tensor], sizes: list[float] | None) -> tuple[list[float], list[int]]:
    """(entry size, entries in use) of each codebook; where `sizes` is given, with entries of these sizes."""
    found, used = [], []
    residual = latents
    for place in range(CONFIG.num_codebooks):
        split, layer = (
            ("rvq_first", place) if place < CONFIG.num_semantic else ("rvq_rest", place - CONFIG.num_semantic)
        )
        if layer == 0:
            residual = latents @ tensors[f"quantizer.{split}.input_proj.weight"][:, :, 0].T
        prefix = f"quantizer.{split}.vq.layers.{layer}._codebook."
        entries = tensors[prefix + "embedding_sum"] / tensors[prefix + "cluster_usage"][:, None]
        found.append(float(f"{ENTRY_TO_RESIDUAL * residual.square().mean().sqrt():.3g}"))
        if sizes is None:
            entries = entries * (found[-1] / entries.square().mean().sqrt())
        nearest = (entries.square().sum(1) / 2 - residual @ entries.T).argmin(1)
        used.append(len(nearest.unique()))
        residual = residual - entries[nearest]
    return found, used


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    torch.set_grad_enabled(False)
    clips = [read(path) for path in arguments.recordings]
    gains = measure_gains(clips, arguments.seeds[0])
    random_weights.GAINS.update(gains)
    latents, tensors = latents_of(clips, arguments.seeds[0])
    sizes, _ = walk(latents, tensors, None)
    random_weights.ENTRY_SIZES[:] = sizes
    print(f"GAINS = {gains}\nENTRY_SIZES = {sizes}")
    print(
        f"{len(latents)} frames; drawn evenly they would use {2048 * (1 - math.exp(-len(latents) / 2048)):.0f} entries"
    )
    for seed in arguments.seeds:
        latents, tensors = latents_of(clips, seed)
        spectrum = torch.linalg.eigvalsh(torch.cov(latents.double().T))
        dimension = spectrum.sum().square() / spectrum.square().sum()
        sizes, used = walk(latents, tensors, random_weights.ENTRY_SIZES)
        mean, power = latents.mean(0).square().sum(), latents.square().sum(1).mean()
        print(f"seed {seed}: dimension {dimension:.0f}, squared mean {mean:.3g} of {power:.3g}")
        print(f"  sizes {sizes[0]} {sizes[1]} .. {sizes[-1]}; entries in use: {used}")


if __name__ == "__main__":
    main()
