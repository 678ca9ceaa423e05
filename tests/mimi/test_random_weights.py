"""random:SEED is one model everywhere: its numbers are pinned, and drawn by exact operations."""

import hashlib

import numpy as np

from mimi.config import MimiConfig
from mimi.layouts import all_shapes
from mimi.random_weights import draw, uniform
from tests.mimi.tiny import CONFIG


def test_the_numbers_of_a_seed_are_pinned() -> None:
    digest = hashlib.sha256()
    for name, shape in sorted(all_shapes(CONFIG).items()):
        digest.update(draw(name, shape, 7, CONFIG).astype("<f4").tobytes())
    assert digest.hexdigest()[:16] == "8109e5f26e09a9d0"


def test_uniform_numbers_are_uniform_and_differ_by_seed_and_name() -> None:
    values = uniform("name", (1000, 100), 0)
    assert values.dtype == np.float32
    assert abs(values.mean()) < 0.01 and abs(values.var() - 1 / 3) < 0.01 and np.abs(values).max() < 1
    assert len(np.unique(values)) > 99_000
    for other in (uniform("name", (1000, 100), 1), uniform("other", (1000, 100), 0)):
        assert abs(np.corrcoef(values.ravel(), other.ravel())[0, 1]) < 0.02


def test_entries_of_a_codebook_have_nearly_one_norm() -> None:
    config = MimiConfig()
    prefix = "quantizer.rvq_rest.vq.layers.30._codebook."
    sums = draw(prefix + "embedding_sum", (2048, 256), 0, config)
    usage = draw(prefix + "cluster_usage", (2048,), 0, config)
    norms = np.square(sums / usage[:, None]).sum(1)
    assert norms.max() / norms.min() < 1.05
    assert usage.min() > 0.4
