"""Samples to latents to codes, one step of every slot at a time; chains the layers and owns no state."""

from collections.abc import Mapping

import torch
from torch import Tensor

from mimi.config import MimiConfig
from mimi.conv import RowConv, strided_taps
from mimi.quantizer import Quantizer
from mimi.seanet import SeanetEncoder
from mimi.state import EncoderState, keep
from mimi.transformer import Transformer


class Encoder:
    """SEANet, transformer, downsampling and quantizer, ready to run in `dtype` on the weights' device."""

    def __init__(self, weights: Mapping[str, Tensor], config: MimiConfig, num_codebooks: int, dtype: torch.dtype):
        self.config, self.dtype = config, dtype
        self.seanet = SeanetEncoder(weights, config, dtype)
        self.transformer = Transformer(weights, "encoder_transformer", config, dtype)
        self.downsample = RowConv(
            strided_taps(weights["downsample.conv.conv.conv.weight"], config.resample), None, dtype
        )
        self.quantizer = Quantizer(weights, num_codebooks, config, dtype)

    def new_state(self, slots: int, device: torch.device) -> EncoderState:
        """All slots at the start of a clip."""
        shapes = self.seanet.context_shapes() | {"downsample": (1, self.downsample.in_width)}
        return EncoderState.new(slots, shapes, self.config, device, self.dtype)

    def latents(self, pcm: Tensor, state: EncoderState, active: Tensor | None) -> Tensor:
        """pcm: [S, F * frame] -> [S, F, dimension], unquantized; the active slots of the state move on."""
        fresh = state.positions == 0
        x = self.seanet(pcm.to(self.dtype), state.contexts, state.workspace, active)
        x = self.transformer(x, state, active)
        return self._downsample(x, fresh, state, active)

    def _downsample(self, x: Tensor, fresh: Tensor, state: EncoderState, active: Tensor | None) -> Tensor:
        """Pairs of positions to frames; before a clip's first position, the model has that position repeated."""
        slots, length, width = x.shape
        context = state.contexts["downsample"]
        rows = x.reshape(slots, length // self.config.resample, self.downsample.in_width)
        first = x[:, :1].repeat(1, 1, self.config.resample)
        before = torch.where(fresh[:, None, None], first, context)
        rows = torch.cat([before, rows], 1)
        keep(context, rows[:, -1:], active)
        return self.downsample(rows, x.new_empty(slots, rows.shape[1] - 1, width), state.workspace)
