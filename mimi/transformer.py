"""The causal transformer of both ends: rotary attention over a sliding window of keys and values.

Keeps no state; the window and the positions come in with each call and are moved on in place.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from mimi.config import MimiConfig
from mimi.matrix import Matrix
from mimi.state import StreamState, keep

QUERY_BLOCK = 50  # on a CPU


@dataclass(slots=True)
class _Layer:
    """One layer's weights, [in, out]; layer scale is folded into `out` and `down`."""

    norm1: tuple[Tensor, Tensor]
    qkv: Matrix
    out: Matrix
    norm2: tuple[Tensor, Tensor]
    up: Matrix
    down: Matrix


class Transformer:
    """[S, T, dimension] -> [S, T, dimension], T positions on from where each slot stands."""

    def __init__(self, weights: Mapping[str, Tensor], prefix: str, config: MimiConfig, dtype: torch.dtype):
        self.config = config
        self.layers = [
            _layer(weights, f"{prefix}.transformer.layers.{index}.", dtype) for index in range(config.num_layers)
        ]
        # As official moshi: the frequencies are float32 numbers. What follows from them is exact.
        half = config.head_dim // 2
        exponents = torch.arange(half, dtype=torch.float64) / half
        frequencies = (config.rope_base**-exponents).float().double()
        self.frequencies = frequencies.to(self.layers[0].norm1[0].device)

    def __call__(self, x: Tensor, state: StreamState, active: Tensor | None) -> Tensor:
        """Advances keys, values and positions of the active slots. x isn't changed."""
        slots, length, width = x.shape
        rotation = self._rotation(state.positions, length)
        mask = self._mask(state.positions, length, x.dtype)
        x = x.reshape(slots * length, width).clone()
        for layer, keys, values in zip(self.layers, state.keys, state.values, strict=True):
            h = functional.layer_norm(x, (width,), *layer.norm1, self.config.norm_eps)
            qkv = layer.qkv.product(h).view(slots, length, 3, self.config.num_heads, self.config.head_dim)
            attended = self._attend(qkv, rotation, mask, keys, values, active)
            x = layer.out.add_product(attended.view(slots * length, width), x)
            h = functional.layer_norm(x, (width,), *layer.norm2, self.config.norm_eps)
            h = functional.gelu(layer.up.product(h))
            x = layer.down.add_product(h, x)
        step = torch.full_like(state.positions, length)
        state.positions.add_(step if active is None else step * active)
        return x.view(slots, length, width)

    def _rotation(self, positions: Tensor, length: int) -> Tensor:
        """complex [S, T, 1, 1, half]: exp(i * position * frequency), its angle computed in float64.

        In float32 the angle itself is wrong by 1e-4 after a minute; in float64 by 1e-9 after a week.
        """
        ahead = torch.arange(length, device=positions.device)
        angles = (positions[:, None] + ahead).double()[..., None] * self.frequencies
        rotation = torch.polar(torch.ones_like(angles), angles)[:, :, None, None]
        return rotation if self.layers[0].norm1[0].dtype == torch.float64 else rotation.to(torch.complex64)

    def _mask(self, positions: Tensor, length: int, dtype: torch.dtype) -> Tensor:
        """[S, 1, T, window + T], added to the scores: 0 where the key is one of the context's positions, else -inf."""
        window = self.config.window
        query = torch.arange(length, device=positions.device)[:, None] + window
        key = torch.arange(window + length, device=positions.device)[None]
        band = (key <= query) & (key > query - self.config.context)
        seen = key >= window - positions[:, None]
        allowed = band[None] & seen[:, None]
        blocked = torch.full((), float("-inf"), dtype=dtype, device=positions.device)
        return torch.where(allowed, torch.zeros_like(blocked), blocked)[:, None]

    def _attend(
        self, qkv: Tensor, rotation: Tensor, mask: Tensor, keys: Tensor, values: Tensor, active: Tensor | None
    ) -> Tensor:
        """qkv: [S, T, 3, H, D] -> [S, T, H, D]; keys and values move on."""
        pairs = qkv[:, :, :2].reshape(*qkv.shape[:2], 2, qkv.shape[3], -1, 2)
        rotated = torch.view_as_complex(pairs.to(torch.view_as_real(rotation).dtype)) * rotation
        rotated = torch.view_as_real(rotated).flatten(-2).to(qkv.dtype)
        query, new_keys = rotated[:, :, 0].transpose(1, 2), rotated[:, :, 1].transpose(1, 2)
        all_keys = torch.cat([keys, new_keys], 2)
        all_values = torch.cat([values, qkv[:, :, 2].transpose(1, 2)], 2)
        window, length = keys.shape[2], qkv.shape[1]
        keep(keys, all_keys[:, :, length : length + window], active)
        keep(values, all_values[:, :, length : length + window], active)
        if not qkv.is_cuda:
            attend = _attention_in_blocks
        elif qkv.dtype == torch.float32:
            attend = plain_attention
        else:
            attend = functional.scaled_dot_product_attention
        return attend(query, all_keys, all_values, mask).transpose(1, 2).contiguous()


def plain_attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Attention as products and a softmax: on a GPU the fused kernels don't heed the TF32 switches, products do."""
    scores = torch.matmul(query * query.shape[-1] ** -0.5, keys.transpose(2, 3)).add_(mask)
    return torch.matmul(scores.softmax(-1), values)


def _attention_in_blocks(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Attention of a few queries at a time, each block over the keys that one of its queries may see."""
    length, window = query.shape[2], keys.shape[2] - query.shape[2]
    out = torch.empty_like(query)
    for start in range(0, length, QUERY_BLOCK):
        stop = min(length, start + QUERY_BLOCK)
        near = slice(start, window + stop)
        out[:, :, start:stop] = functional.scaled_dot_product_attention(
            query[:, :, start:stop], keys[:, :, near], values[:, :, near], mask[:, :, start:stop, near]
        )
    return out


def _layer(weights: Mapping[str, Tensor], prefix: str, dtype: torch.dtype) -> _Layer:
    def ready(tensor: Tensor) -> Tensor:
        return tensor.to(dtype).contiguous()

    scale1, scale2 = weights[prefix + "layer_scale_1.scale"], weights[prefix + "layer_scale_2.scale"]
    return _Layer(
        norm1=(ready(weights[prefix + "norm1.weight"]), ready(weights[prefix + "norm1.bias"])),
        qkv=Matrix(weights[prefix + "self_attn.in_proj_weight"].T, dtype),
        out=Matrix(weights[prefix + "self_attn.out_proj.weight"].T * scale1, dtype),
        norm2=(ready(weights[prefix + "norm2.weight"]), ready(weights[prefix + "norm2.bias"])),
        up=Matrix(weights[prefix + "linear1.weight"].T, dtype),
        down=Matrix(weights[prefix + "linear2.weight"].T * scale2, dtype),
    )
