"""What one step hands to the next: contexts, keys and values, positions; and scratch memory, which carries nothing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from mimi.config import MimiConfig


class Workspace:
    """Scratch memory by name, kept between steps so that it stays mapped, and small enough to stay in cache."""

    def __init__(self, device: torch.device, dtype: torch.dtype):
        self._device, self._dtype = device, dtype
        self._flat: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """A contiguous tensor of `shape` with undefined contents; the next `take` of the name may reuse its memory."""
        size = 1
        for length in shape:
            size *= length
        flat = self._flat.get(name)
        if flat is None or flat.numel() < size:
            flat = self._flat[name] = torch.empty(size, device=self._device, dtype=self._dtype)
        return flat[:size].view(shape)


@dataclass(slots=True)
class StreamState:
    """The state of S slots. Steps update the tensors in place, so their addresses are fixed (CUDA graphs need that).

    contexts: per convolution, [S, rows, width]. keys, values: per layer, [S, heads, window, head_dim], the newest last.
    positions: int64 [S], transformer positions that the slot has seen.
    """

    slots: int
    contexts: dict[str, Tensor]
    keys: list[Tensor]
    values: list[Tensor]
    positions: Tensor
    workspace: Workspace = field(repr=False)

    @classmethod
    def new(
        cls,
        slots: int,
        context_shapes: Mapping[str, tuple[int, int]],
        config: MimiConfig,
        device: torch.device,
        dtype: torch.dtype,
    ) -> Self:
        """All slots at the start of a stream. context_shapes: name -> (rows, width)."""

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, device=device, dtype=dtype)

        kept = (slots, config.num_heads, config.window, config.head_dim)
        return cls(
            slots=slots,
            contexts={name: zeros(slots, *shape) for name, shape in context_shapes.items()},
            keys=[zeros(*kept) for _ in range(config.num_layers)],
            values=[zeros(*kept) for _ in range(config.num_layers)],
            positions=torch.zeros(slots, dtype=torch.int64, device=device),
            workspace=Workspace(device, dtype),
        )

    def tensors(self) -> Iterable[Tensor]:
        """All that is carried from step to step, the slot first in each shape."""
        yield from self.contexts.values()
        yield from self.keys
        yield from self.values
        yield self.positions

    def reset(self, mask: Tensor) -> None:
        """Make the slots of `mask` (bool [S]) as new. Filled, not multiplied: what a slot held may be NaN."""
        for tensor in self.tensors():
            tensor.masked_fill_(mask.view(-1, *[1] * (tensor.dim() - 1)), 0)


class EncoderState(StreamState):
    """State of the encoder's slots."""


class DecoderState(StreamState):
    """State of the decoder's slots."""


def keep(old: Tensor, new: Tensor, active: Tensor | None) -> None:
    """old[s] = new[s] for the active slots, in place, without looking at `active` from the host."""
    if active is None:
        old.copy_(new)
    else:
        torch.where(active.view(-1, *[1] * (old.dim() - 1)), new, old, out=old)
