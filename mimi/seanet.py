"""SEANet, both ways: a chain of row convolutions run block by block, so that activations stay in cache.

`RowConv` computes; this decides order, blocks and contexts. Contexts are kept after the activation (ELU(0) = 0, so a
fresh context is the zero padding of the official model).
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from mimi.config import MimiConfig
from mimi.conv import PairConv, RowConv, folded_taps, strided_taps, transposed_taps
from mimi.elu import elu_into
from mimi.layouts import seanet_indices
from mimi.matrix import Matrix
from mimi.state import Workspace, keep

Weights = Mapping[str, Tensor]
Contexts = Mapping[str, Tensor]
# Output rows of each encoder stage at once, on a CPU: even, and few enough that activations stay in a core's cache.
BLOCK_ROWS = (480, 400, 400, 1 << 30)


class Residual:
    """h += conv1(ELU(conv3(ELU(h)))), in place."""

    def __init__(self, weights: Weights, prefix: str, dtype: torch.dtype):
        self.name = prefix
        first, second = prefix + ".block.1.conv.conv", prefix + ".block.3.conv.conv"
        self.narrow = RowConv(strided_taps(weights[first + ".weight"], 1), weights[first + ".bias"], dtype)
        self.widen = Matrix(weights[second + ".weight"][:, :, 0].T, dtype)
        self.bias = weights[second + ".bias"].to(dtype)

    def __call__(self, h: Tensor, contexts: Contexts, scratch: Workspace, active: Tensor | None) -> None:
        slots, length, width = h.shape
        rows = scratch.take("rows", slots, self.narrow.context + length, width)
        with_context(rows, contexts[self.name], h, scratch, active)
        hidden = scratch.take("hidden", slots, length, self.narrow.out_width)
        self.narrow(rows, hidden, scratch)
        elu_into(hidden, hidden, scratch)
        self.widen.add_product(hidden, h)
        h.add_(self.bias)


def with_context(rows: Tensor, context: Tensor, h: Tensor, scratch: Workspace, active: Tensor | None) -> None:
    """rows [S, k - 1 + T / s, s * C] = the context, then ELU(h) for h [S, T, C]; and the context moves on."""
    kept = context.shape[1]
    rows[:, :kept] = context
    elu_into(h, rows[:, kept:].view(h.shape), scratch)
    keep(context, rows[:, rows.shape[1] - kept :], active)


class SeanetEncoder:
    """Samples to latents: [S, N, 1] -> [S, N / hop, dimension]."""

    def __init__(self, weights: Weights, config: MimiConfig, dtype: torch.dtype):
        self.fold = math.gcd(config.frame_samples, 8)
        first = "encoder.model.0.conv.conv"
        taps, bias = folded_taps(weights[first + ".weight"], self.fold), weights[first + ".bias"].repeat(self.fold)
        self.first = RowConv(taps, bias, dtype)
        self.ratios, self.hop = config.ratios, config.hop_samples
        self.residuals, self.strided = [], []
        for index, ratio in zip(seanet_indices(config), config.ratios, strict=True):
            self.residuals.append(Residual(weights, f"encoder.model.{index}", dtype))
            name = f"encoder.model.{index + 2}.conv.conv"
            taps = strided_taps(weights[name + ".weight"], ratio)
            self.strided.append(PairConv(taps, weights[name + ".bias"], dtype))
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
        slots, samples = pcm.shape
        out = torch.empty(slots, samples // self.hop, self.last.out_width, device=pcm.device, dtype=pcm.dtype)
        if pcm.device.type != "cpu":
            self._run(pcm, contexts, scratch, active, out)
            return out
        # On a CPU slot by slot, and each stage block by block: what is being computed on stays in cache.
        for slot in range(slots) if active is None else active.nonzero()[:, 0].tolist():
            own = {name: context[slot : slot + 1] for name, context in contexts.items()}
            self._run(pcm[slot : slot + 1], own, scratch, None, out[slot : slot + 1])
        return out

    def _run(self, pcm: Tensor, contexts: Contexts, scratch: Workspace, active: Tensor | None, out: Tensor) -> None:
        slots, samples = pcm.shape
        width = self.first.out_width // self.fold
        h, length = pcm, samples
        for stage, (residual, strided, ratio) in enumerate(zip(self.residuals, self.strided, self.ratios, strict=True)):
            rows_out = length // ratio
            following = scratch.take(f"stage.{stage % 2}", slots, rows_out, strided.out_width)
            block = self._block_rows(stage, rows_out, pcm.device)
            for start in range(0, rows_out, block):
                stop = min(start + block, rows_out)
                part = h[:, start * ratio : stop * ratio]
                if stage == 0:
                    part = self._first(part, contexts["first"], scratch, active, width)
                residual(part, contexts, scratch, active)
                rows = scratch.take("rows", slots, strided.context + stop - start, strided.in_width)
                with_context(rows, contexts[f"strided.{stage}"], part, scratch, active)
                strided(rows, following[:, start:stop], scratch)
            h, length = following, rows_out
        rows = scratch.take("rows", slots, self.last.context + length, self.last.in_width)
        with_context(rows, contexts["last"], h, scratch, active)
        self.last(rows, out, scratch)

    def _first(self, pcm: Tensor, context: Tensor, scratch: Workspace, active: Tensor | None, width: int) -> Tensor:
        """[S, T] -> [S, T, width]: the first convolution, on rows of `fold` samples."""
        slots, samples = pcm.shape
        rows = scratch.take("pcm", slots, self.first.context + samples // self.fold, self.fold)
        rows[:, : self.first.context] = context
        rows[:, self.first.context :] = pcm.view(slots, -1, self.fold)
        h = scratch.take("h", slots, samples, width)
        self.first(rows, h.view(slots, -1, self.first.out_width), scratch)
        keep(context, rows[:, rows.shape[1] - self.first.context :], active)
        return h

    def _block_rows(self, stage: int, rows: int, device: torch.device) -> int:
        """How many of a stage's output rows are computed at once."""
        if device.type != "cpu":
            return rows
        return min(rows, BLOCK_ROWS[min(stage, len(BLOCK_ROWS) - 1)])


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
        h = self.first(rows, scratch.take("h", slots, x.shape[1], self.first.out_width), scratch)
        for stage, (transposed, residual) in enumerate(zip(self.transposed, self.residuals, strict=True)):
            length = h.shape[1]
            rows = scratch.take("rows", slots, transposed.context + length, transposed.in_width)
            with_context(rows, contexts[f"transposed.{stage}"], h, scratch, active)
            h = transposed(rows, scratch.take("h", slots, length, transposed.out_width), scratch)
            h = h.view(slots, length * self.ratios[stage], -1)
            residual(h, contexts, scratch, active)
        rows = scratch.take("rows", slots, self.last.context + h.shape[1], self.last.in_width)
        with_context(rows, contexts["last"], h, scratch, active)
        return self.last(rows, h.new_empty(slots, h.shape[1], 1), scratch)[:, :, 0]
