"""Writes a Mimi's tensors to disk in either checkpoint layout, for tests that compare layouts or implementations."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from mimi.config import MimiConfig
from mimi.layouts import Layout, all_shapes, wanted
from mimi.random_weights import random_tensors


def write_random(folder: Path, seed: int, layout: Layout, config: MimiConfig | None = None) -> Path:
    """A checkpoint of `random:SEED`; its folder (transformers, with a config.json) or file (moshi)."""
    config = config or MimiConfig()
    return write(folder, random_tensors(config, seed, all_shapes(config)), layout, config)


def write(folder: Path, tensors: Mapping[str, torch.Tensor], layout: Layout, config: MimiConfig) -> Path:
    """`tensors`, by canonical name, as a checkpoint of `layout`."""
    folder.mkdir(parents=True, exist_ok=True)
    if layout == "moshi":
        path = folder / "tokenizer-test-checkpoint.safetensors"
        save_file(dict(tensors), path)
        return path
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    keyed = {}
    for name, item in wanted(shapes, layout, ()).items():
        parts = list(tensors[name].chunk(len(item.keys)))
        if len(parts) == 3:
            parts[:2] = [halves(part, config) for part in parts[:2]]
        keyed |= {key: part.contiguous() for key, part in zip(item.keys, parts, strict=True)}
    save_file(keyed, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(transformers_config(config)))
    return folder


def halves(rows: torch.Tensor, config: MimiConfig) -> torch.Tensor:
    """Rows of a q or k projection from moshi's order (pairs) to transformers' (halves), per head."""
    return rows.view(config.num_heads, config.head_dim // 2, 2, -1).transpose(1, 2).reshape(rows.shape)


def transformers_config(config: MimiConfig) -> dict[str, object]:
    """What transformers writes as config.json, as far as it matters here."""
    return {
        "model_type": "mimi",
        "num_filters": config.num_filters,
        "kernel_size": config.kernel,
        "residual_kernel_size": config.residual_kernel,
        "last_kernel_size": config.last_kernel,
        "compress": config.compress,
        "upsampling_ratios": list(reversed(config.ratios)),
        "hidden_size": config.dimension,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_heads,
        "intermediate_size": config.feed_forward,
        "sliding_window": config.context,
        "codebook_size": config.codebook_size,
        "vector_quantization_hidden_dimension": config.codebook_dim,
        "num_quantizers": config.num_codebooks,
        "rope_theta": config.rope_base,
        "use_causal_conv": True,
        "hidden_act": "gelu",
    }
