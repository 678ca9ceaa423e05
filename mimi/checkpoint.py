"""Finds a checkpoint (hub id, folder, file or `random:SEED`), says what it is, and loads its tensors.

Inspection reads names and shapes only and imports no torch, so that a job file is checked at once.
"""

import hashlib
import json
import os
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mimi.config import MimiConfig, config_from, is_language_model
from mimi.errors import CheckpointError
from mimi.layouts import (
    Layout,
    Shape,
    check_tensors,
    codebook_shapes,
    count_codebooks,
    decoder_shapes,
    detect_layout,
    encoder_shapes,
    wanted,
)

if TYPE_CHECKING:
    import torch

MAX_HEADER_BYTES = 16 << 20  # a Mimi's is 40 kB
MAX_CONFIG_BYTES = 1 << 20
MAX_SEED = 2**63 - 1
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_MOSHI_FILE = re.compile(r"tokenizer-.*checkpoint.*\.safetensors")


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """What a checkpoint is, found without loading a tensor."""

    weights: str  # as the user named it
    layout: Layout
    config: MimiConfig
    num_codebooks: int  # the most that it has
    path: str | None = None  # of the file; None for random, and for the hub until it's downloaded
    repo: str | None = None  # hub id
    filename: str | None = None  # in the repo
    revision: str | None = None  # commit, of a hub repo
    seed: int | None = None  # of random weights

    @property
    def is_random(self) -> bool:
        """Whether the codes mean nothing."""
        return self.layout == "random"


def inspect_checkpoint(weights: str, revision: str | None = None) -> CheckpointInfo:
    """What `weights` names, checked as far as names, shapes and config go (kv_repeat among them).

    Of a hub repo, lists the files and downloads the small config; the revision becomes a commit. Raises
    CheckpointError.
    """
    if weights.startswith("random:"):
        return _random(weights, revision)
    path = Path(weights).expanduser()
    if path.exists():
        if revision is not None:
            raise CheckpointError(
                f"revision: {weights} is on this machine, which has no revision {revision!r}; drop it"
            )
        return inspect_file(weights, _file_of_folder(path) if path.is_dir() else path)
    if weights.startswith((".", "/", "~")) or weights.endswith(".safetensors") or not _HUB_ID.fullmatch(weights):
        raise CheckpointError(f"weights: {weights} doesn't exist; name a hub id, a folder, a file or random:SEED")
    from mimi.hub import inspect_repo

    return inspect_repo(weights, revision)


def weights_sha256(info: CheckpointInfo) -> str:
    """sha256 in hex: of the file; of random weights, of all that determines them; of the hub, what it says itself."""
    if info.seed is not None:
        from mimi.random_weights import VERSION

        return hashlib.sha256(f"mimi random weights, version {VERSION}, seed {info.seed}".encode()).hexdigest()
    if info.path is None:
        from mimi.hub import file_sha256

        known = file_sha256(info)
        if known is not None:
            return known
    with open(local_file(info), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def local_file(info: CheckpointInfo) -> str:
    """Path of the weights on this machine; downloads them where they're the hub's."""
    if info.path is not None:
        return info.path
    from mimi.hub import download

    return download(info)


def load_tensors(
    info: CheckpointInfo, num_codebooks: int, *, encoder: bool = True, decoder: bool = False
) -> "dict[str, torch.Tensor]":
    """Canonical name -> float tensor on the CPU: of the encoder with so many codebooks, of the decoder less them.

    Raises CheckpointError for a tensor that is missing, unknown, misshapen, no float or not finite.
    """
    shapes: dict[str, Shape] = {}
    if encoder:
        shapes |= encoder_shapes(info.config) | codebook_shapes(info.config, range(num_codebooks))
    if decoder:
        shapes |= decoder_shapes(info.config)
    shapes = {name: shape for name, shape in shapes.items() if not name.endswith("_initialized")}
    if info.seed is not None:
        from mimi.random_weights import random_tensors

        return random_tensors(info.config, info.seed, shapes)
    return _read_tensors(info, local_file(info), shapes)


def _read_tensors(info: CheckpointInfo, path: str, shapes: dict[str, Shape]) -> "dict[str, torch.Tensor]":
    import torch
    from safetensors import SafetensorError, safe_open

    found = read_header(path)
    check_tensors(found, info.layout, info.config, path)
    tensors = {}
    try:
        with safe_open(path, framework="pt") as file:
            for name, item in wanted(shapes, info.layout, found).items():
                parts = [_finite(file.get_tensor(key), key, path) for key in item.keys]
                if len(parts) == 3:
                    parts[:2] = [interleaved(part, info.config) for part in parts[:2]]
                tensors[name] = parts[0] if len(parts) == 1 else torch.cat(parts)
    except SafetensorError as error:
        raise CheckpointError(f"{path}: isn't a whole safetensors file ({error}); download it again") from error
    return tensors


def interleaved(rows: "torch.Tensor", config: MimiConfig) -> "torch.Tensor":
    """Rows of a q or k projection from transformers' order (halves) to moshi's (pairs), per head."""
    half = config.head_dim // 2
    return rows.view(config.num_heads, 2, half, -1).transpose(1, 2).reshape(rows.shape)


def _finite(tensor: "torch.Tensor", key: str, path: str) -> "torch.Tensor":
    if not tensor.is_floating_point():
        raise CheckpointError(f"{path}: tensor {key} holds {tensor.dtype}, no floats; use a Mimi checkpoint")
    if not tensor.isfinite().all():
        raise CheckpointError(f"{path}: tensor {key} holds NaN or infinity; download the checkpoint again")
    return tensor


def read_header(path: str) -> dict[str, Shape]:
    """Tensor name -> shape, from the head of a safetensors file, its lengths checked before they're believed."""
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            prefix = file.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
                raise CheckpointError(f"{path}: isn't a safetensors file; name a Mimi checkpoint in that format")
            header = json.loads(file.read(length))
    except OSError as error:
        raise CheckpointError(f"{path}: can't be read ({error.strerror}); make it readable") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: its header isn't JSON; download the checkpoint again") from error
    return parse_header(header, path)


def parse_header(header: Any, where: str) -> dict[str, Shape]:
    """Tensor name -> shape, from a safetensors header. Raises CheckpointError."""
    shapes: dict[str, Shape] = {}
    for name, entry in header.items() if isinstance(header, dict) else [("", None)]:
        if name == "__metadata__":
            continue
        shape = entry.get("shape") if isinstance(entry, dict) else None
        if not isinstance(shape, list) or not all(type(length) is int and length >= 0 for length in shape):
            raise CheckpointError(f"{where}: its header has no shape for tensor {name[:80]!r}; download it again")
        shapes[name] = tuple(shape)
    return shapes


def read_config(path: Path) -> dict[str, Any] | None:
    """A config.json as a mapping; None where there is none. Raises CheckpointError."""
    if not path.is_file():
        return None
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise CheckpointError(
                f"{path}: is over {MAX_CONFIG_BYTES >> 20} MB, no config of Mimi; correct or remove it"
            )
        raw = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: can't be read ({error.strerror}); make it readable") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: isn't JSON ({str(error)[:80]}); correct it") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path}: isn't a JSON object; correct it")
    return raw


def choose_file(names: Iterable[str], where: str) -> str:
    """The Mimi among a folder's or repo's files: kyutai's tokenizer-*, else model.safetensors, else the only one."""
    files = sorted(name for name in names if name.endswith(".safetensors") and "/" not in name)
    chosen = [name for name in files if _MOSHI_FILE.fullmatch(name)] or [n for n in files if n == "model.safetensors"]
    chosen = chosen or files
    if len(chosen) != 1:
        have = ", ".join(chosen[:4]) or "none"
        raise CheckpointError(f"weights: {where} must hold one Mimi .safetensors file, it has {have}; name the file")
    return chosen[0]


def mimi_config(raw: dict[str, Any] | None, layout: Layout | None, where: str) -> MimiConfig | None:
    """The config that a config.json gives; None where there's none, or it is the Moshi language model's.

    `layout` is None where the weights haven't been looked at.
    """
    if raw is None or (layout != "transformers" and is_language_model(raw)):
        return None
    return config_from(raw, where)


def _file_of_folder(folder: Path) -> Path:
    mimi_config(read_config(folder / "config.json"), None, str(folder / "config.json"))  # its errors come first
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise CheckpointError(f"{folder}: can't be listed ({error.strerror}); make it readable") from error
    return folder / choose_file(names, str(folder))


def inspect_file(weights: str, path: Path) -> CheckpointInfo:
    """What the safetensors file at `path`, with a config.json beside it or not, holds. Raises CheckpointError."""
    if path.suffix in (".bin", ".pt", ".pth", ".ckpt", ".th"):
        raise CheckpointError(f"weights: {path} is a pickle, which can run code; convert it to safetensors")
    found = read_header(str(path))
    layout = detect_layout(found, str(path))
    config_path = path.parent / "config.json"
    config = mimi_config(read_config(config_path), layout, str(config_path))
    if config is None:
        config = replace(MimiConfig(), num_codebooks=count_codebooks(found, layout, MimiConfig()))
    check_tensors(found, layout, config, str(path))
    return CheckpointInfo(weights, layout, config, config.num_codebooks, path=str(path.absolute()))


def _random(weights: str, revision: str | None) -> CheckpointInfo:
    text = weights.removeprefix("random:")
    if not text.isascii() or not text.isdecimal() or len(text) > 19 or int(text) > MAX_SEED:
        raise CheckpointError(f"weights: {weights} needs a seed from 0 to {MAX_SEED}, such as random:0")
    if revision is not None:
        raise CheckpointError(f"revision: random weights have no revision {revision!r}; drop it")
    config = MimiConfig()
    return CheckpointInfo(weights, "random", config, config.num_codebooks, seed=int(text))
