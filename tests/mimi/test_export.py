"""Checkpoints written in either layout: read back to the same tensors, and what official loaders take."""

from pathlib import Path

import pytest
import torch

from mimi.checkpoint import inspect_checkpoint, load_tensors
from mimi.config import MimiConfig, config_from
from mimi.errors import CheckpointError
from mimi.export import export_checkpoint, transformers_config, write_checkpoint
from mimi.layouts import Layout, all_shapes
from mimi.random_weights import random_tensors
from tests.mimi.tiny import CONFIG

LAYOUTS: tuple[Layout, ...] = ("moshi", "transformers")


def loaded(weights: str) -> dict[str, torch.Tensor]:
    info = inspect_checkpoint(weights)
    return load_tensors(info, info.num_codebooks, decoder=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny checkpoint in transformers' layout: the one that can say that it is tiny."""
    return write_checkpoint(tmp_path / "source", random_tensors(CONFIG, 3, all_shapes(CONFIG)), "transformers", CONFIG)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_exported_checkpoint_has_the_tensors_of_its_source(folder: Path, tmp_path: Path, layout: Layout) -> None:
    path = export_checkpoint(str(folder), tmp_path / "export", layout)
    if layout == "moshi":  # which has no config: the tiny sizes are told beside it
        (path.parent / "config.json").write_bytes((folder / "config.json").read_bytes())
    assert inspect_checkpoint(str(path)).layout == layout
    source, export = loaded(str(folder)), loaded(str(path))
    assert source.keys() == export.keys()
    assert all(torch.equal(export[name], tensor) for name, tensor in source.items())


def test_the_config_reads_back_to_the_same_sizes() -> None:
    for config in (MimiConfig(), CONFIG):
        assert config_from(transformers_config(config), "config.json") == config


def test_the_flags_that_official_loaders_insist_on_are_there(folder: Path, tmp_path: Path) -> None:
    from safetensors import safe_open

    path = export_checkpoint(str(folder), tmp_path / "export", "moshi")
    with safe_open(path, framework="pt") as file:
        assert set(file.keys()) == all_shapes(CONFIG).keys()


def test_weights_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="doesn't exist"):
        export_checkpoint(str(tmp_path / "none"), tmp_path / "export", "moshi")
