"""The architecture's numbers, and the one place where an imported config becomes them; reads no file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mimi.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class MimiConfig:
    """Sizes of a Mimi. The defaults are the published model; tests use smaller ones."""

    sample_rate: int = 24_000  # Hz
    num_filters: int = 64  # channels after the first convolution; doubled by each ratio
    ratios: tuple[int, ...] = (4, 5, 6, 8)  # strides of the encoder, in encoding order
    kernel: int = 7  # of the first convolution (decoder: also its first)
    residual_kernel: int = 3
    last_kernel: int = 3
    compress: int = 2  # a residual block narrows by this
    dimension: int = 512  # of the latents and of the transformer
    num_layers: int = 8
    num_heads: int = 8
    feed_forward: int = 2048
    context: int = 250  # positions that attention sees, its own included
    rope_base: float = 10_000.0
    norm_eps: float = 1e-5
    resample: int = 2  # transformer positions in a frame
    codebook_size: int = 2048
    codebook_dim: int = 256
    num_codebooks: int = 32  # the most that the checkpoint has
    num_semantic: int = 1  # of these, the ones with the first projection

    @property
    def hop_samples(self) -> int:
        """Samples of one transformer position."""
        return math.prod(self.ratios)

    @property
    def frame_samples(self) -> int:
        """Samples of one frame of codes."""
        return self.hop_samples * self.resample

    @property
    def frame_rate(self) -> float:
        """Frames a second."""
        return self.sample_rate / self.frame_samples

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.dimension // self.num_heads

    @property
    def window(self) -> int:
        """Past positions whose keys are kept: the context less the newest, rounded up for aligned products."""
        return -(-(self.context - 1) // 8) * 8


_PUBLISHED = MimiConfig()
# transformers' name -> ours, where a checkpoint may choose its own size
_SIZES = {
    "sampling_rate": "sample_rate",
    "num_filters": "num_filters",
    "kernel_size": "kernel",
    "residual_kernel_size": "residual_kernel",
    "last_kernel_size": "last_kernel",
    "compress": "compress",
    "hidden_size": "dimension",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "feed_forward",
    "sliding_window": "context",
    "codebook_size": "codebook_size",
    "vector_quantization_hidden_dimension": "codebook_dim",
    "num_quantizers": "num_codebooks",
    "num_semantic_quantizers": "num_semantic",
}
# transformers' name -> the one value that this codec computes
_FIXED = {
    "audio_channels": 1,
    "attention_bias": False,
    "hidden_act": "gelu",
    "num_residual_layers": 1,
    "pad_mode": "constant",
    "trim_right_ratio": 1.0,
    "use_causal_conv": True,
    "use_conv_shortcut": False,
}
# moshi's section and key -> ours
_MOSHI_SIZES = {
    ("seanet", "n_filters"): "num_filters",
    ("seanet", "kernel_size"): "kernel",
    ("seanet", "residual_kernel_size"): "residual_kernel",
    ("seanet", "last_kernel_size"): "last_kernel",
    ("seanet", "compress"): "compress",
    ("seanet", "dimension"): "dimension",
    ("transformer", "num_layers"): "num_layers",
    ("transformer", "num_heads"): "num_heads",
    ("transformer", "dim_feedforward"): "feed_forward",
    ("transformer", "context"): "context",
    ("quantizer", "bins"): "codebook_size",
    ("quantizer", "dimension"): "codebook_dim",
    ("quantizer", "n_q"): "num_codebooks",
}
_LANGUAGE_MODEL_KEYS = {"text_card", "dep_q", "moshi_name", "depformer_dim", "depformer_num_layers", "mimi_name"}


def is_language_model(raw: Mapping[str, Any]) -> bool:
    """Whether a config.json describes the Moshi language model that Mimi's weights are shipped with, not Mimi."""
    return bool(_LANGUAGE_MODEL_KEYS & raw.keys())


def kv_repeat_of(raw: Mapping[str, Any], where: str) -> int:
    """How many query heads share a key-value head, by a config of either kind.

    Raises CheckpointError where the numbers don't make a whole repeat, or contradict each other.
    """
    found: list[tuple[str, int]] = []
    for section in (raw, raw.get("transformer")):
        if not isinstance(section, Mapping):
            continue
        if "kv_repeat" in section:
            found.append(("kv_repeat", _positive(section["kv_repeat"], "kv_repeat", where)))
        heads, kv_heads = section.get("num_attention_heads"), section.get("num_key_value_heads")
        if kv_heads is not None:
            heads = _positive(_PUBLISHED.num_heads if heads is None else heads, "num_attention_heads", where)
            kv_heads = _positive(kv_heads, "num_key_value_heads", where)
            if heads % kv_heads:
                raise CheckpointError(
                    f"kv_repeat: {where} has {heads} heads with {kv_heads} key-value heads, which isn't a whole "
                    "repeat; mimi-jobs needs kv_repeat 1, as many key-value heads as heads"
                )
            found.append((f"{heads} heads with {kv_heads} key-value heads", heads // kv_heads))
    for what, repeat in found:
        if repeat != 1:
            words = f"{what} {repeat}" if what == "kv_repeat" else f"{what} (kv_repeat {repeat})"
            raise CheckpointError(
                f"kv_repeat: the checkpoint {where} has {words}; mimi-jobs needs kv_repeat 1: "
                "use weights without grouped-query attention"
            )
    return 1


def config_from(raw: Mapping[str, Any], where: str) -> MimiConfig:
    """The one reading of an imported config: transformers' flat keys, or moshi's sections of keyword arguments.

    `where` names the file in errors. Raises CheckpointError for kv_repeat other than 1, for a wrong type and for
    an architecture that isn't Mimi's.
    """
    kv_repeat_of(raw, where)
    if isinstance(raw.get("seanet"), Mapping):
        return _from_moshi(raw, where)
    sizes = {
        ours: _positive(raw[theirs], theirs, where) for theirs, ours in _SIZES.items() if raw.get(theirs) is not None
    }
    for key, value in _FIXED.items():
        if raw.get(key) is not None and raw[key] != value:
            raise CheckpointError(f"{key}: {where} says {raw[key]!r}, Mimi has {value!r}; use a Mimi checkpoint")
    rope = raw.get("rope_parameters") or {}
    rope_base = _number(raw.get("rope_theta") or rope.get("rope_theta") or 10_000.0, "rope_theta", where)
    norm_eps = _number(raw.get("norm_eps") or 1e-5, "norm_eps", where)
    config = MimiConfig(
        **sizes, ratios=_ratios(raw.get("upsampling_ratios"), where), rope_base=rope_base, norm_eps=norm_eps
    )
    return _checked(config, where)


def _from_moshi(raw: Mapping[str, Any], where: str) -> MimiConfig:
    sizes = {}
    for (section, key), ours in _MOSHI_SIZES.items():
        values = raw.get(section)
        if isinstance(values, Mapping) and values.get(key) is not None:
            sizes[ours] = _positive(values[key], f"{section}.{key}", where)
    if raw.get("sample_rate") is not None:
        sizes["sample_rate"] = _positive(raw["sample_rate"], "sample_rate", where)
    transformer = raw.get("transformer")
    period = transformer.get("max_period") if isinstance(transformer, Mapping) else None
    rope_base = _number(period or 10_000.0, "transformer.max_period", where)
    config = MimiConfig(**sizes, ratios=_ratios(raw["seanet"].get("ratios"), where), rope_base=rope_base)
    return _checked(config, where)


def _checked(config: MimiConfig, where: str) -> MimiConfig:
    if config.dimension % config.num_heads or config.head_dim % 2:
        raise CheckpointError(
            f"num_attention_heads: {where} has {config.num_heads} heads for a width of {config.dimension}, "
            "which doesn't divide into heads of an even width; use a Mimi checkpoint"
        )
    if config.num_semantic >= config.num_codebooks + 1:
        raise CheckpointError(
            f"num_semantic_quantizers: {where} has {config.num_semantic} of {config.num_codebooks} codebooks; "
            "use a Mimi checkpoint"
        )
    return config


def _ratios(value: Any, where: str) -> tuple[int, ...]:
    """Configs list the ratios in decoding order; ours is the encoder's."""
    if value is None:
        return _PUBLISHED.ratios
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= 16:
        raise CheckpointError(f"upsampling_ratios: {where} says {value!r}, which isn't a list of strides")
    return tuple(_positive(ratio, "upsampling_ratios", where) for ratio in reversed(value))


def _positive(value: Any, key: str, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 24:
        raise CheckpointError(f"{key}: {where} says {value!r}, which isn't a positive integer; correct the config")
    return value


def _number(value: Any, key: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise CheckpointError(f"{key}: {where} says {value!r}, which isn't a positive number; correct the config")
    return float(value)
