"""SEANet, both ways: a chain of row convolutions run block by block, so that activations stay in cache.

`RowConv` computes; this decides order, blocks and contexts. Contexts are kept after the activation (ELU(0) = 0, so a
fresh context is the zero padding of the official model).
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from mimi.config import MimiConfig
from mimi.conv import RowConv, add_product, folded_taps, strided_taps, transposed_taps
from mimi.layouts import seanet_indices
from mimi.state import Workspace, keep

Weights = Mapping[str, Tensor]
Contexts = Mapping[str, Tensor]


def elu_into(x: Tensor, out: Tensor) -> None:
    """out = ELU(x)."""
    torch.ops.aten.elu.out(x, 1.0, 1.0, 1.0, out=out)


class Residual:
    """h += conv1(ELU(conv3(ELU(h)))), in place."""

    def __init__(self, weights: Weights, prefix: str, dtype: torch.dtype):
        self.name = prefix
        first, second = prefix + ".block.1.conv.conv", prefix + ".block.3.conv.conv"
        self.narrow = RowConv(strided_taps(weights[first + ".weight"], 1), weights[first + ".bias"], dtype)
        self.widen = weights[second + ".weight"][:, :, 0].T.to(dtype).contiguous()
        self.bias = weights[second + ".bias"].to(dtype)

    def __call__(self, h: Tensor, contexts: Contexts, scratch: Workspace, active: Tensor | None) -> None:
        slots, length, width = h.shape
        rows = scratch.take("rows", slots, self.narrow.context + length, width)
        with_context(rows, contexts[self.name], h, active)
        hidden = scratch.take("hidden", slots, length, self.narrow.out_width)
        self.narrow(rows, hidden)
        elu_into(hidden, hidden)
        add_product(h, hidden, self.widen)
        h.add_(self.bias)


def with_context(rows: Tensor, context: Tensor, h: Tensor, active: Tensor | None) -> None:
    """rows [S, k - 1 + T / s, s * C] = the context, then ELU(h) for h [S, T, C]; and the context moves on."""
    kept = context.shape[1]
    rows[:, :kept] = context
    elu_into(h, rows[:, kept:].view(h.shape))
    keep(context, rows[:, rows.shape[1] - kept :], active)


class SeanetEncoder:
    """Samples to latents: [S, N, 1] -> [S, N / hop, dimension]."""

    def __init__(self, weights: Weights, config: MimiConfig, dtype: torch.dtype):
        self.fold = math.gcd(config.frame_samples, 8)
        first = "encoder.model.0.conv.conv"
        taps, bias = folded_taps(weights[first + ".weight"], self.fold), weights[first + ".bias"].repeat(self.fold)
        self.first = RowConv(taps, bias, dtype)
        self.ratios = config.ratios
        self.residuals, self.strided = [], []
        for index, ratio in zip(seanet_indices(config), config.ratios, strict=True):
            self.residuals.append(Residual(weights, f"encoder.model.{index}", dtype))
            name = f"encoder.model.{index + 2}.conv.conv"
            taps = strided_taps(weights[name + ".weight"], ratio)
            self.strided.append(RowConv(taps, weights[name + ".bias"], dtype))
        last = f"encoder.model.{3 * len(config.ratios) + 2}.conv.conv"
        self.last = RowConv(strided_taps(weights[last + ".weight"], 1), weights[last + ".bias"], dtype)

    def context_shapes(self) -> dict[str, tuple[int, int]]:
        """Context name -> (rows, width)."""
        shapes = {"first": (self.first.context, self.first.in_width)}
        for stage, (residual, strided) in enumerate(zip(self.residuals, self.strided, strict=True)):
            shapes[residual.name] = (residual.narrow.context, residual.narrow.in_width)
            shapes[f"strided.{stage}"] = (strided.context, strided.in_width)
        shapes["last"] = (self.last.context, self.last.in_width)
        return shapes

    def __call__(self, pcm: Tensor, contexts: Contexts, scratch: Workspace, active: Tensor | None) -> Tensor:
        """pcm: [S, N], N a multiple of the frame -> [S, N / hop, dimension]."""
        slots = pcm.shape[0]
        rows = scratch.take("pcm", slots, self.first.context + pcm.shape[1] // self.fold, self.fold)
        rows[:, : self.first.context] = contexts["first"]
        rows[:, self.first.context :] = pcm.view(slots, -1, self.fold)
        h = scratch.take("h", slots, pcm.shape[1], self.first.out_width // self.fold)
        self.first(rows, h.view(slots, -1, self.first.out_width))
        keep(contexts["first"], rows[:, rows.shape[1] - self.first.context :], active)
        for stage, (residual, strided) in enumerate(zip(self.residuals, self.strided, strict=True)):
            residual(h, contexts, scratch, active)
            length = h.shape[1] // self.ratios[stage]
            rows = scratch.take("rows", slots, strided.context + length, strided.in_width)
            with_context(rows, contexts[f"strided.{stage}"], h, active)
            h = strided(rows, scratch.take("h", slots, length, strided.out_width))
        rows = scratch.take("rows", slots, self.last.context + h.shape[1], self.last.in_width)
        with_context(rows, contexts["last"], h, active)
        return self.last(rows, h.new_empty(slots, h.shape[1], self.last.out_width))


class SeanetDecoder:
    """Latents to samples: [S, T, dimension] -> [S, T * hop]."""

    def __init__(self, weights: Weights, config: MimiConfig, dtype: torch.dtype):
        def stride_one(index: int) -> RowConv:
            name = f"decoder.model.{index}.conv.conv"
            return RowConv(strided_taps(weights[name + ".weight"], 1), weights[name + ".bias"], dtype)

        self.first = stride_one(0)
        self.ratios = config.ratios[::-1]
        self.transposed, self.residuals = [], []
        for stage, ratio in enumerate(self.ratios):
            name = f"decoder.model.{3 * stage + 2}.convtr.convtr"
            bias = weights[name + ".bias"].repeat(ratio)
            self.transposed.append(RowConv(transposed_taps(weights[name + ".weight"], ratio), bias, dtype))
            self.residuals.append(Residual(weights, f"decoder.model.{3 * stage + 3}", dtype))
        self.last = stride_one(3 * len(self.ratios) + 2)

    def context_shapes(self) -> dict[str, tuple[int, int]]:
        """Context name -> (rows, width)."""
        shapes = {"first": (self.first.context, self.first.in_width)}
        for stage, (transposed, residual) in enumerate(zip(self.transposed, self.residuals, strict=True)):
            shapes[f"transposed.{stage}"] = (transposed.context, transposed.in_width)
            shapes[residual.name] = (residual.narrow.context, residual.narrow.in_width)
        shapes["last"] = (self.last.context, self.last.in_width)
        return shapes

    def __call__(self, x: Tensor, contexts: Contexts, scratch: Workspace, active: Tensor | None) -> Tensor:
        """x: [S, T, dimension] -> [S, T * hop]."""
        slots = x.shape[0]
        rows = torch.cat([contexts["first"], x], 1)
        keep(contexts["first"], rows[:, rows.shape[1] - self.first.context :], active)
        h = self.first(rows, scratch.take("h", slots, x.shape[1], self.first.out_width))
        for stage, (transposed, residual) in enumerate(zip(self.transposed, self.residuals, strict=True)):
            length = h.shape[1]
            rows = scratch.take("rows", slots, transposed.context + length, transposed.in_width)
            with_context(rows, contexts[f"transposed.{stage}"], h, active)
            h = transposed(rows, scratch.take("h", slots, length, transposed.out_width))
            h = h.view(slots, length * self.ratios[stage], -1)
            residual(h, contexts, scratch, active)
        rows = scratch.take("rows", slots, self.last.context + h.shape[1], self.last.in_width)
        with_context(rows, contexts["last"], h, active)
        return self.last(rows, h.new_empty(slots, h.shape[1], 1))[:, :, 0]
