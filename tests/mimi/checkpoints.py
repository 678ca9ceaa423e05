"""Checkpoints of random weights on disk, for tests that compare layouts or implementations."""

from pathlib import Path

from mimi.config import MimiConfig
from mimi.export import transformers_config, write_checkpoint
from mimi.layouts import Layout, all_shapes
from mimi.random_weights import random_tensors

__all__ = ["transformers_config", "write", "write_random"]

write = write_checkpoint


# The sizes of a Mimi that takes milliseconds where a test runs the whole pipeline, whose path is the full-size one's.
SMALL = MimiConfig(num_filters=8, dimension=32, num_layers=2, num_heads=2, feed_forward=64, codebook_dim=16)


def write_random(folder: Path, seed: int, layout: Layout, config: MimiConfig | None = None) -> Path:
    """A checkpoint of `random:SEED`; its folder (transformers, with a config.json) or file (moshi)."""
    config = config or MimiConfig()
    return write(folder, random_tensors(config, seed, all_shapes(config)), layout, config)
