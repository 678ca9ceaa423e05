"""Codes to samples, one step of every slot at a time; chains the layers and owns no state."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from mimi.config import MimiConfig
from mimi.seanet import SeanetDecoder
from mimi.state import DecoderState, keep
from mimi.transformer import Transformer


class Decoder:
    """Codebook entries, upsampling, transformer and SEANet, ready to run in `dtype` on the weights' device."""

    def __init__(
        self, weights: Mapping[str, Tensor], entries: Sequence[Tensor], config: MimiConfig, dtype: torch.dtype
    ):
        """entries: per codebook [size, dim], as the quantizer has them."""
        self.config, self.dtype, self.entries = config, dtype, entries
        outputs = [weights[f"quantizer.{split}.output_proj.weight"] for split in ("rvq_first", "rvq_rest")]
        self.project = [output[:, :, 0].T.to(entries[0].dtype).contiguous() for output in outputs]
        # [2 * resample, dimension]: what a frame adds to its own positions, then to the next frame's
        self.upsample = weights["upsample.convtr.convtr.convtr.weight"][:, 0].T.to(dtype).contiguous()
        self.transformer = Transformer(weights, "decoder_transformer", config, dtype)
        self.seanet = SeanetDecoder(weights, config, dtype)

    def new_state(self, slots: int, device: torch.device) -> DecoderState:
        """All slots at the start of a clip."""
        shapes = self.seanet.context_shapes() | {"upsample": (1, self.config.dimension)}
        return DecoderState.new(slots, shapes, self.config, device, self.dtype)

    def __call__(self, codes: Tensor, state: DecoderState, active: Tensor | None) -> Tensor:
        """codes: int64 [S, K, F], K up to the codebooks there are -> [S, F * frame]; the active slots move on."""
        x = self._upsample(self._latents(codes), state.contexts["upsample"], active)
        x = self.transformer(x, state, active)
        return self.seanet(x, state.contexts, state.workspace, active)

    def _latents(self, codes: Tensor) -> Tensor:
        """[S, F, dimension]: the entries of either split summed, projected, and summed."""
        total = None
        for start, stop, project in (
            (0, self.config.num_semantic, self.project[0]),
            (self.config.num_semantic, codes.shape[1], self.project[1]),
        ):
            summed = None
            for index in range(start, min(stop, codes.shape[1])):
                chosen = functional.embedding(codes[:, index], self.entries[index])
                summed = chosen if summed is None else summed.add_(chosen)
            if summed is not None:
                projected = torch.matmul(summed, project)
                total = projected if total is None else total.add_(projected)
        assert total is not None
        return total.to(self.dtype)

    def _upsample(self, x: Tensor, context: Tensor, active: Tensor | None) -> Tensor:
        """[S, F, C] -> [S, F * resample, C], each channel by itself."""
        slots, frames, width = x.shape
        before = torch.cat([context, x[:, :-1]], 1)
        keep(context, x[:, -1:], active)
        own, next_ = self.upsample.chunk(2)
        y = x[:, :, None] * own + before[:, :, None] * next_
        return y.view(slots, frames * self.config.resample, width)
