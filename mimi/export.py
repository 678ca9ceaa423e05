"""Writes tensors as a checkpoint of either layout, for tools that read only the other one. Loads and checks nothing."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from mimi.checkpoint import inspect_checkpoint, load_tensors
from mimi.config import MimiConfig
from mimi.layouts import Layout, codebook_shapes, wanted

MOSHI_FILE = "tokenizer-mimi-checkpoint.safetensors"  # of a name by which a folder's Mimi is found


def export_checkpoint(weights: str, folder: Path, layout: Layout, revision: str | None = None) -> Path:
    """The checkpoint that `weights` names (hub id, folder, file, random:SEED), as one of `layout` in `folder`.

    Returns what its readers take: the file (moshi) or the folder (transformers). Raises CheckpointError.
    """
    info = inspect_checkpoint(weights, revision)
    tensors = load_tensors(info, info.num_codebooks, decoder=True)
    for name, shape in codebook_shapes(info.config, range(info.num_codebooks)).items():
        tensors.setdefault(name, torch.ones(shape))  # the flags `_initialized`, which official loaders insist on
    return write_checkpoint(folder, tensors, layout, info.config)


def write_checkpoint(folder: Path, tensors: Mapping[str, Tensor], layout: Layout, config: MimiConfig) -> Path:
    """`tensors`, by canonical name (`mimi.layouts`), as files in `folder`; returns as `export_checkpoint` does."""
    folder.mkdir(parents=True, exist_ok=True)
    if layout == "moshi":
        path = folder / MOSHI_FILE
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
        return path
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    keyed = {}
    for name, item in wanted(shapes, "transformers", ()).items():
        parts = list(tensors[name].chunk(len(item.keys)))
        if len(parts) == 3:
            parts[:2] = [_halves(part, config) for part in parts[:2]]
        keyed |= {key: part.contiguous() for key, part in zip(item.keys, parts, strict=True)}
    save_file(keyed, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(transformers_config(config), indent=2) + "\n")
    return folder


def transformers_config(config: MimiConfig) -> dict[str, object]:
    """The config.json of transformers' `MimiModel` of these sizes."""
    return {
        "architectures": ["MimiModel"],
        "model_type": "mimi",
        "sampling_rate": config.sample_rate,
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
        "head_dim": config.head_dim,
        "intermediate_size": config.feed_forward,
        "sliding_window": config.context,
        "codebook_size": config.codebook_size,
        "codebook_dim": config.codebook_dim,
        "vector_quantization_hidden_dimension": config.codebook_dim,
        "num_quantizers": config.num_codebooks,
        "num_semantic_quantizers": config.num_semantic,
        "rope_theta": config.rope_base,
        "norm_eps": config.norm_eps,
        "upsample_groups": config.dimension,
        "use_causal_conv": True,
        "hidden_act": "gelu",
    }


def _halves(rows: Tensor, config: MimiConfig) -> Tensor:
    """Rows of a q or k projection from moshi's order (pairs) to transformers' (halves), per head."""
    return rows.view(config.num_heads, config.head_dim // 2, 2, -1).transpose(1, 2).reshape(rows.shape)
