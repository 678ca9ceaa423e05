"""`Mimi`: samples to codes and back, whole or step by step. Loading, layers and state live in their own files.

The codes of a clip are the same function of its samples whatever the chunk, the slot, the neighbours and the length.
"""

from collections.abc import Iterator, Mapping
from threading import Lock
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from mimi.checkpoint import CheckpointInfo, inspect_checkpoint, load_tensors
from mimi.config import MimiConfig
from mimi.decoder import Decoder
from mimi.encoder import Encoder
from mimi.errors import CheckpointError
from mimi.layouts import decoder_shapes
from mimi.quantizer import Quantizer
from mimi.state import DecoderState, EncoderState, StreamState

WHOLE_CHUNK_FRAMES = 50  # of `encode` and `decode`: long enough for full-speed products

State = TypeVar("State", bound=StreamState)


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
        self._decoder: Decoder | None = None
        self._loading = Lock()
        with torch.inference_mode():
            self._encoder = Encoder(_Exact(tensors, self.device), config, num_codebooks, dtype)
        if decoder_shapes(config).keys() <= tensors.keys():
            self._make_decoder(tensors)

    @classmethod
    def load(
        cls,
        weights: str,
        *,
        revision: str | None = None,
        num_codebooks: int | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        decoder: bool = False,
    ) -> "Mimi":
        """The model that a hub id, folder, file or `random:SEED` names, with the first `num_codebooks` (default: all).

        The decoder's weights are loaded when it's first used, or now where `decoder` says so. Raises CheckpointError.
        """
        info = inspect_checkpoint(weights, revision)
        count = info.num_codebooks if num_codebooks is None else num_codebooks
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= info.num_codebooks:
            raise CheckpointError(
                f"num_codebooks: {count!r} isn't an integer from 1 to {info.num_codebooks}, which {weights} has"
            )
        tensors = load_tensors(info, count, decoder=decoder)
        return cls(info.config, tensors, num_codebooks=count, device=device, dtype=dtype, info=info)

    @property
    def quantizer(self) -> Quantizer:
        """Codebooks and projections of the encoder."""
        return self._encoder.quantizer

    def new_state(self, slots: int) -> EncoderState:
        """State of `slots` slots, each at the start of a clip."""
        with torch.inference_mode():
            return self._encoder.new_state(slots, self.device)

    def reset_slots(self, state: State, mask: Tensor) -> State:
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

    def new_decoder_state(self, slots: int) -> DecoderState:
        """State of `slots` slots of decoding, each at the start of a clip."""
        with torch.inference_mode():
            return self._need_decoder().new_state(slots, self.device)

    def decode_step(
        self, codes: Tensor, state: DecoderState, active: Tensor | None = None
    ) -> tuple[Tensor, DecoderState]:
        """codes: int64 [S, K, F], K from 1 to `num_codebooks` -> float [S, 1, F * 1920]; as `encode_step` otherwise."""
        with torch.inference_mode():
            return self._need_decoder()(codes, state, active)[:, None], state

    def decode(self, codes: Tensor) -> Tensor:
        """codes: integers [B, K, T], K from 1 to `num_codebooks` -> sound [B, 1, T * 1920] at 24 kHz.

        Computed chunk by chunk: besides the sound itself, it takes the memory of a chunk. Raises ValueError.
        """
        if codes.dim() != 3 or not 1 <= codes.shape[1] <= self.num_codebooks:
            raise ValueError(
                f"codes: shape {list(codes.shape)} isn't [clips, 1 to {self.num_codebooks} codebooks, frames]"
            )
        if codes.is_floating_point() or codes.dtype == torch.bool:
            raise ValueError(f"codes: {codes.dtype} isn't a type of integers")
        codes = codes.to(self.device, torch.int64)
        if codes.numel() and not 0 <= int(codes.min()) <= int(codes.max()) < self.config.codebook_size:
            raise ValueError(
                f"codes: {int(codes.min())} to {int(codes.max())} isn't within 0 to {self.config.codebook_size - 1}"
            )
        state = self.new_decoder_state(codes.shape[0])
        sound = torch.empty(
            codes.shape[0], 1, codes.shape[2] * self.config.frame_samples, dtype=self.dtype, device=self.device
        )
        for start in range(0, codes.shape[2], WHOLE_CHUNK_FRAMES):
            chunk, _ = self.decode_step(codes[:, :, start : start + WHOLE_CHUNK_FRAMES], state)
            place = start * self.config.frame_samples
            sound[:, :, place : place + chunk.shape[2]] = chunk
        return sound

    def _need_decoder(self) -> Decoder:
        with self._loading:
            if self._decoder is None:
                if self.info is None:
                    raise ValueError("this Mimi was made without the decoder's tensors")
                self._make_decoder(load_tensors(self.info, self.num_codebooks, encoder=False, decoder=True))
            assert self._decoder is not None
            return self._decoder

    def _make_decoder(self, tensors: Mapping[str, Tensor]) -> None:
        with torch.inference_mode():
            quantizer = self._encoder.quantizer
            entries = [entry.to(quantizer.dtype) for entry in quantizer.entries]
            self._decoder = Decoder(_Exact(tensors, self.device), entries, self.config, self.dtype)
