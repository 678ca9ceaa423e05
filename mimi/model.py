"""`Mimi`: samples to codes and back, whole or step by step. Loading, layers and state live in their own files.

The codes of a clip are the same function of its samples whatever the chunk, the slot, the neighbours and the length.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from mimi.checkpoint import CheckpointInfo, inspect_checkpoint, load_tensors
from mimi.config import MimiConfig
from mimi.encoder import Encoder
from mimi.errors import CheckpointError
from mimi.state import EncoderState

WHOLE_CHUNK_FRAMES = 50  # of `encode`: long enough for full-speed products


class Step(NamedTuple):
    """What a step gives. codes: int64 [S, K, F]; finite: bool [S], false where the sound gave NaN or infinity."""

    codes: Tensor
    finite: Tensor
    state: EncoderState


class _Exact(Mapping[str, Tensor]):
    """Tensors in float64 as they're asked for: what is prepared from weights at loading is rounded once."""

    def __init__(self, tensors: Mapping[str, Tensor], device: torch.device):
        self._tensors, self._device = tensors, device

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name].to(self._device, torch.float64)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class Mimi:
    """The codec. Nothing in it changes after loading: threads may share one, each with states of its own."""

    def __init__(
        self,
        config: MimiConfig,
        tensors: Mapping[str, Tensor],
        *,
        num_codebooks: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        info: CheckpointInfo | None = None,
    ):
        """tensors: canonical name -> tensor (see `mimi.layouts`), those of `num_codebooks` codebooks among them."""
        self.config, self.num_codebooks, self.info = config, num_codebooks, info
        self.device, self.dtype = torch.device(device), dtype
        with torch.inference_mode():
            self._encoder = Encoder(_Exact(tensors, self.device), config, num_codebooks, dtype)

    @classmethod
    def load(
        cls,
        weights: str,
        *,
        revision: str | None = None,
        num_codebooks: int | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> "Mimi":
        """The model that a hub id, folder, file or `random:SEED` names, with the first `num_codebooks` (default: all).

        Raises CheckpointError.
        """
        info = inspect_checkpoint(weights, revision)
        count = info.num_codebooks if num_codebooks is None else num_codebooks
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= info.num_codebooks:
            raise CheckpointError(
                f"num_codebooks: {count!r} isn't an integer from 1 to {info.num_codebooks}, which {weights} has"
            )
        tensors = load_tensors(info, count, decoder=False)
        return cls(info.config, tensors, num_codebooks=count, device=device, dtype=dtype, info=info)

    def new_state(self, slots: int) -> EncoderState:
        """State of `slots` slots, each at the start of a clip."""
        with torch.inference_mode():
            return self._encoder.new_state(slots, self.device)

    def reset_slots(self, state: EncoderState, mask: Tensor) -> EncoderState:
        """Put the slots of `mask` (bool [S]) at the start of a clip, in place; the others aren't touched."""
        with torch.inference_mode():
            state.reset(mask)
        return state

    def encode_step(self, chunk: Tensor, state: EncoderState, active: Tensor | None = None) -> Step:
        """The next F frames of every slot.

        chunk: float32 [S, 1, F * 1920], F any positive integer. active: bool [S]; the state of the others doesn't
        move, and their codes mean nothing. The state's tensors are updated in place. No size depends on data, and
        nothing is read back from the device.
        """
        with torch.inference_mode():
            latents = self._encoder.latents(chunk[:, 0], state, active)
            finite = latents.isfinite().flatten(1).all(1)
            return Step(self._encoder.quantizer.encode(latents), finite, state)

    def latents_step(self, chunk: Tensor, state: EncoderState, active: Tensor | None = None) -> Tensor:
        """As `encode_step`, but what would be quantized: [S, F, 512]."""
        with torch.inference_mode():
            return self._encoder.latents(chunk[:, 0], state, active)

    def encode(self, pcm: Tensor) -> Tensor:
        """pcm: float32 [B, 1, N] at 24 kHz -> int64 codes [B, K, ceil(N / 1920)], in the memory of a chunk.

        The tail is completed with zeros, as official moshi does.
        """
        if pcm.dim() != 3 or pcm.shape[1] != 1:
            raise ValueError(f"pcm: shape {list(pcm.shape)} isn't [clips, 1, samples]")
        batch, _, samples = pcm.shape
        size = WHOLE_CHUNK_FRAMES * self.config.frame_samples
        state = self.new_state(batch)
        pieces = [torch.empty(batch, self.num_codebooks, 0, dtype=torch.int64, device=self.device)]
        for start in range(0, samples, size):
            chunk = pcm[:, :, start : start + size].to(self.device)
            missing = -chunk.shape[2] % self.config.frame_samples
            pieces.append(self.encode_step(torch.nn.functional.pad(chunk, (0, missing)), state).codes)
        return torch.cat(pieces, 2)
