"""Which tensors a Mimi checkpoint has, in both layouts: names, shapes, and how one layout becomes the other.

The canonical names and arrangement are moshi's (`tokenizer-*.safetensors`). Loads nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from mimi.config import MimiConfig
from mimi.errors import CheckpointError

Layout = Literal["moshi", "transformers", "random"]
Shape = tuple[int, ...]
QKV = ("q_proj", "k_proj", "v_proj")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A canonical tensor and the keys of the file that it is made of: three where q, k and v lie apart."""

    shape: Shape
    keys: tuple[str, ...]


def seanet_indices(config: MimiConfig) -> list[int]:
    """Place of each stage's residual block in the encoder's list of layers; its stride follows two later."""
    return [1 + 3 * i for i in range(len(config.ratios))]


def encoder_shapes(config: MimiConfig) -> dict[str, Shape]:
    """Canonical name -> shape of what encoding needs, codebooks aside."""
    shapes: dict[str, Shape] = {}
    width = config.num_filters
    _conv(shapes, "encoder.model.0.conv.conv", (width, 1, config.kernel))
    for index, ratio in zip(seanet_indices(config), config.ratios, strict=True):
        _residual(shapes, f"encoder.model.{index}", width, config)
        _conv(shapes, f"encoder.model.{index + 2}.conv.conv", (2 * width, width, 2 * ratio))
        width *= 2
    last = 3 * len(config.ratios) + 2
    _conv(shapes, f"encoder.model.{last}.conv.conv", (config.dimension, width, config.last_kernel))
    _transformer(shapes, "encoder_transformer", config)
    shapes["downsample.conv.conv.conv.weight"] = (config.dimension, config.dimension, 2 * config.resample)
    for split in ("rvq_first", "rvq_rest"):
        shapes[f"quantizer.{split}.input_proj.weight"] = (config.codebook_dim, config.dimension, 1)
    return shapes


def decoder_shapes(config: MimiConfig) -> dict[str, Shape]:
    """Canonical name -> shape of what decoding needs, codebooks aside."""
    shapes: dict[str, Shape] = {}
    for split in ("rvq_first", "rvq_rest"):
        shapes[f"quantizer.{split}.output_proj.weight"] = (config.dimension, config.codebook_dim, 1)
    shapes["upsample.convtr.convtr.convtr.weight"] = (config.dimension, 1, 2 * config.resample)
    _transformer(shapes, "decoder_transformer", config)
    width = config.num_filters << len(config.ratios)
    _conv(shapes, "decoder.model.0.conv.conv", (width, config.dimension, config.kernel))
    index = 2
    for ratio in reversed(config.ratios):
        shapes[f"decoder.model.{index}.convtr.convtr.weight"] = (width, width // 2, 2 * ratio)
        shapes[f"decoder.model.{index}.convtr.convtr.bias"] = (width // 2,)
        width //= 2
        _residual(shapes, f"decoder.model.{index + 1}", width, config)
        index += 3
    _conv(shapes, f"decoder.model.{index}.conv.conv", (1, width, config.last_kernel))
    return shapes


def codebook_prefix(index: int, config: MimiConfig) -> str:
    """Canonical prefix of one codebook's tensors; `index` counts all, the semantic ones first."""
    first = index < config.num_semantic
    split = "rvq_first" if first else "rvq_rest"
    return f"quantizer.{split}.vq.layers.{index if first else index - config.num_semantic}._codebook."


def codebook_shapes(config: MimiConfig, indices: Iterable[int]) -> dict[str, Shape]:
    """Canonical name -> shape of these codebooks' tensors."""
    shapes: dict[str, Shape] = {}
    for index in indices:
        prefix = codebook_prefix(index, config)
        shapes[prefix + "embedding_sum"] = (config.codebook_size, config.codebook_dim)
        shapes[prefix + "cluster_usage"] = (config.codebook_size,)
        shapes[prefix + "_initialized"] = (1,)
    return shapes


def all_shapes(config: MimiConfig) -> dict[str, Shape]:
    """Canonical name -> shape of every tensor of a whole checkpoint."""
    return encoder_shapes(config) | decoder_shapes(config) | codebook_shapes(config, range(config.num_codebooks))


def detect_layout(keys: Iterable[str], where: str) -> Layout:
    """`moshi` or `transformers`, by the names in a file. Raises CheckpointError where they are neither's."""
    keys = list(keys)
    if any(key.startswith("encoder.model.0.") for key in keys):
        return "moshi"
    if any(key.startswith("encoder.layers.0.") for key in keys):
        return "transformers"
    sample = ", ".join(sorted(keys)[:3]) or "nothing"
    raise CheckpointError(f"{where}: holds no Mimi (its tensors are {sample}, ...); name a Mimi checkpoint")


def to_transformers(name: str) -> str:
    """transformers' key of a canonical name; of the stacked q, k and v, the key with `q_proj`."""
    if name in ("downsample.conv.conv.conv.weight", "upsample.convtr.convtr.convtr.weight"):
        return name.split(".", 1)[0] + ".conv.weight"
    for ours, theirs in _RENAMES:
        name = name.replace(ours, theirs)
    return name


_RENAMES = (
    (".conv.conv.", ".conv."),
    (".convtr.convtr.", ".conv."),
    ("encoder.model.", "encoder.layers."),
    ("decoder.model.", "decoder.layers."),
    ("transformer.transformer.layers.", "transformer.layers."),
    ("self_attn.in_proj_weight", "self_attn.q_proj.weight"),
    ("self_attn.out_proj.", "self_attn.o_proj."),
    ("linear1.", "mlp.fc1."),
    ("linear2.", "mlp.fc2."),
    ("norm1.", "input_layernorm."),
    ("norm2.", "post_attention_layernorm."),
    ("layer_scale_1.", "self_attn_layer_scale."),
    ("layer_scale_2.", "mlp_layer_scale."),
    ("quantizer.rvq_first.", "quantizer.semantic_residual_vector_quantizer."),
    ("quantizer.rvq_rest.", "quantizer.acoustic_residual_vector_quantizer."),
    (".vq.layers.", ".layers."),
    ("._codebook._initialized", ".codebook.initialized"),
    ("._codebook.embedding_sum", ".codebook.embed_sum"),
    ("._codebook.", ".codebook."),
)


def wanted(shapes: Mapping[str, Shape], layout: Layout, present: Iterable[str]) -> dict[str, Wanted]:
    """Where each canonical tensor is found in a file of `layout`; `present` tells moshi's old and new names apart."""
    present = frozenset(present)
    table = {}
    for name, shape in shapes.items():
        if layout == "moshi":
            newer = name.replace("in_proj_weight", "in_projs.0.weight").replace("out_proj.", "out_projs.0.")
            table[name] = Wanted(shape, (newer if newer in present else name,))
        elif name.endswith("self_attn.in_proj_weight"):
            key = to_transformers(name)
            table[name] = Wanted(shape, tuple(key.replace("q_proj", part) for part in QKV))
        else:
            table[name] = Wanted(shape, (to_transformers(name),))
    return table


def key_shapes(table: Mapping[str, Wanted]) -> Iterator[tuple[str, Shape]]:
    """(key of the file, its shape) for each tensor of the table."""
    for item in table.values():
        for key in item.keys:
            yield key, (item.shape[0] // len(item.keys), *item.shape[1:])


def check_tensors(found: Mapping[str, Shape], layout: Layout, config: MimiConfig, where: str) -> None:
    """Raises CheckpointError that names the first tensors that are missing, unknown or of another shape."""
    expected = dict(key_shapes(wanted(all_shapes(config), layout, found)))
    _check_kv_repeat(found, config, where)
    optional = {key for key in expected if key.endswith("initialized")}
    _refuse(sorted(expected.keys() - found.keys() - optional), "lacks", where, "use a whole checkpoint")
    _refuse(sorted(found.keys() - expected.keys()), "has the unknown", where, "use a Mimi checkpoint")
    for key in sorted(expected.keys() & found.keys()):
        if tuple(found[key]) != expected[key] and key not in optional:
            raise CheckpointError(
                f"{where}: tensor {key} is {list(found[key])}, Mimi has {list(expected[key])}; use a Mimi checkpoint"
            )


def count_codebooks(found: Iterable[str], layout: Layout, config: MimiConfig) -> int:
    """How many codebooks a file holds, by the highest number in its keys."""
    prefix = codebook_prefix(config.num_semantic, config).split("0.", 1)[0]
    prefix = to_transformers(prefix) if layout == "transformers" else prefix
    numbers = [key[len(prefix) :].split(".", 1)[0] for key in found if key.startswith(prefix)]
    return config.num_semantic + 1 + max((int(n) for n in numbers if n.isdecimal() and len(n) < 4), default=-1)


def _refuse(keys: list[str], what: str, where: str, remedy: str) -> None:
    if keys:
        more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
        raise CheckpointError(f"{where}: {what} tensor {', '.join(keys[:3])}{more}; {remedy}")


def _check_kv_repeat(found: Mapping[str, Shape], config: MimiConfig, where: str) -> None:
    for key, shape in found.items():
        if not shape:
            continue
        if key.endswith("self_attn.k_proj.weight"):
            rows = shape[0]
        elif key.endswith(("self_attn.in_proj_weight", "self_attn.in_projs.0.weight")):
            rows = (shape[0] - config.dimension) // 2
        else:
            continue
        if 0 < rows < config.dimension and config.dimension % rows == 0:
            raise CheckpointError(
                f"kv_repeat: the checkpoint {where} has keys of {rows} rows for queries of {config.dimension} in "
                f"{key} (kv_repeat {config.dimension // rows}); mimi-jobs needs kv_repeat 1: "
                "use weights without grouped-query attention"
            )


def _conv(shapes: dict[str, Shape], prefix: str, shape: Shape) -> None:
    shapes[prefix + ".weight"] = shape
    shapes[prefix + ".bias"] = shape[:1]


def _residual(shapes: dict[str, Shape], prefix: str, width: int, config: MimiConfig) -> None:
    hidden = width // config.compress
    _conv(shapes, prefix + ".block.1.conv.conv", (hidden, width, config.residual_kernel))
    _conv(shapes, prefix + ".block.3.conv.conv", (width, hidden, 1))


def _transformer(shapes: dict[str, Shape], prefix: str, config: MimiConfig) -> None:
    width = config.dimension
    for index in range(config.num_layers):
        layer = f"{prefix}.transformer.layers.{index}."
        shapes[layer + "self_attn.in_proj_weight"] = (3 * width, width)
        shapes[layer + "self_attn.out_proj.weight"] = (width, width)
        shapes[layer + "linear1.weight"] = (config.feed_forward, width)
        shapes[layer + "linear2.weight"] = (width, config.feed_forward)
        for name in ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"):
            shapes[layer + name] = (width,)
        for name in ("layer_scale_1.scale", "layer_scale_2.scale"):
            shapes[layer + name] = (width,)
