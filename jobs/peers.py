"""The other implementations of Mimi's encoder that may be installed, each as one function: recordings to codes.

All are optional; what isn't installed is named with a remedy. Benchmarks decide what they are given and when.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mimi.export import export_checkpoint
from pipeline.records import FRAME_SAMPLES

if TYPE_CHECKING:
    import torch

    from mimi.layouts import Layout

STREAM_FRAMES = 25
BATCH = 8
REMEDIES = {
    "transformers": "pip install transformers",
    "moshi": "pip install --no-deps 'moshi>=0.2.13' (it pins an older torch) and pip install einops sphn",
    "rustymimi": "pip install rustymimi",
}

Encode = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


@dataclass(frozen=True, slots=True)
class Peer:
    """encode: float32 [n] each at 24 kHz -> codes [K, ceil(n / 1920)] each, on as many threads as torch was given."""

    package: str
    name: str
    encode: Encode


def missing_peers() -> list[str]:
    """A line for each peer that isn't installed, with what would install it."""
    return [f"{name}: not installed, left out ({how})" for name, how in REMEDIES.items() if find_spec(name) is None]


def installed_peers(checkpoints: "Checkpoints", num_codebooks: int, threads: int, *, batches: bool) -> Iterator[Peer]:
    """Each way to run each installed peer; `batches` adds the sorted batches, which are slower on a CPU."""
    if find_spec("transformers") is not None:
        yield from _transformers(checkpoints, num_codebooks, threads, batches)
    if find_spec("moshi") is not None:
        yield from _moshi(checkpoints, num_codebooks, threads, batches)
    if find_spec("rustymimi") is not None:
        yield from _rustymimi(checkpoints, num_codebooks)


class Checkpoints:
    """The weights in the layout that a peer reads: their own file where it has it, else one written for now."""

    def __init__(self, weights: str, revision: str | None = None):
        self._weights, self._revision = weights, revision
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        """Remove what was written."""
        if self._temporary is not None:
            self._temporary.cleanup()

    @cached_property
    def moshi(self) -> str:
        """A file in moshi's layout."""
        return self._of("moshi")

    @cached_property
    def transformers(self) -> str:
        """A folder in transformers' layout."""
        return self._of("transformers")

    def _of(self, layout: "Layout") -> str:
        from mimi.checkpoint import inspect_checkpoint, local_file

        info = inspect_checkpoint(self._weights, self._revision)
        if info.layout == layout == "moshi":
            return local_file(info)
        if info.layout == layout and Path(self._weights).is_dir():
            return self._weights
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="mimi-bench-")
        folder = Path(self._temporary.name) / layout
        return str(export_checkpoint(self._weights, folder, layout, self._revision))


def num_frames(clip: np.ndarray) -> int:
    return -(-len(clip) // FRAME_SAMPLES)


def _whole_frames(clip: np.ndarray, frames: int | None = None) -> "torch.Tensor":
    """[1, 1, samples], zeros at the end."""
    import torch

    missing = (frames or num_frames(clip)) * FRAME_SAMPLES - len(clip)
    return torch.nn.functional.pad(torch.from_numpy(clip), (0, missing))[None, None]


def in_threads(encode: Callable[[np.ndarray], np.ndarray], threads: int) -> Encode:
    """The clips one by one, so many at once with a torch thread each: for models that share no state."""

    def run(clips: Sequence[np.ndarray]) -> list[np.ndarray]:
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with ThreadPoolExecutor(threads) as pool:
                return list(pool.map(encode, clips))
        finally:
            torch.set_num_threads(before)

    return run


def sorted_batches(encode: Callable[["torch.Tensor"], np.ndarray]) -> Encode:
    """`encode`: [B, 1, N] -> [B, K, T]. Batches of clips of about one length, padded to the longest."""

    def run(clips: Sequence[np.ndarray]) -> list[np.ndarray]:
        import torch

        codes = {}
        order = sorted(range(len(clips)), key=lambda i: len(clips[i]))
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            frames = max(num_frames(clips[i]) for i in batch)
            done = encode(torch.cat([_whole_frames(clips[i], frames) for i in batch]))
            codes |= {i: done[place, :, : num_frames(clips[i])] for place, i in enumerate(batch)}
        return [codes[i] for i in range(len(clips))]

    return run


def _transformers(checkpoints: Checkpoints, num_codebooks: int, threads: int, batches: bool) -> Iterator[Peer]:
    import torch
    from transformers import MimiModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    model: Any = MimiModel.from_pretrained(checkpoints.transformers).eval()

    @torch.inference_mode()
    def batch(pcm: torch.Tensor) -> np.ndarray:
        return model.encode(pcm, num_quantizers=num_codebooks).audio_codes.numpy()

    yield from _offline("transformers", batch, threads, batches)


def _moshi(checkpoints: Checkpoints, num_codebooks: int, threads: int, batches: bool) -> Iterator[Peer]:
    import torch
    from moshi.models.loaders import get_mimi

    model: Any = get_mimi(checkpoints.moshi, num_codebooks=num_codebooks).eval()

    @torch.inference_mode()
    def batch(pcm: torch.Tensor) -> np.ndarray:
        return model.encode(pcm).numpy()

    yield from _offline("moshi", batch, threads, batches)
    yield Peer("moshi", f"moshi, streaming {STREAM_FRAMES} frames", moshi_streaming(model, STREAM_FRAMES))


def _offline(
    package: str, batch: Callable[["torch.Tensor"], np.ndarray], threads: int, batches: bool
) -> Iterator[Peer]:
    """The ways to run a model that encodes whole clips. batch: float32 [B, 1, n] -> codes [B, K, n / 1920]."""

    def one(clip: np.ndarray) -> np.ndarray:
        return batch(_whole_frames(clip))[0]

    yield Peer(package, f"{package}, one by one", lambda clips: [one(clip) for clip in clips])
    if threads > 1:
        yield Peer(package, f"{package}, {threads} clips at once", in_threads(one, threads))
    if batches:
        yield Peer(package, f"{package}, sorted batch of {BATCH}", sorted_batches(batch))


def moshi_streaming(model: Any, chunk_frames: int) -> Encode:
    """moshi's model step by step, its last step as short as the clip leaves it."""
    import torch

    @torch.inference_mode()
    def run(clips: Sequence[np.ndarray]) -> list[np.ndarray]:
        codes = []
        with model.streaming(1):
            for clip in clips:
                model.reset_streaming()
                steps = _whole_frames(clip).split(chunk_frames * FRAME_SAMPLES, 2)
                codes.append(np.concatenate([model.encode(step)[0].numpy() for step in steps], 1))
        return codes

    return run


def _rustymimi(checkpoints: Checkpoints, num_codebooks: int) -> Iterator[Peer]:
    encode = rustymimi_encoder(checkpoints, num_codebooks)
    yield Peer("rustymimi", "rustymimi", lambda clips: [encode(clip) for clip in clips])


def rustymimi_encoder(checkpoints: Checkpoints, num_codebooks: int) -> Callable[[np.ndarray], np.ndarray]:
    """Its threads are set by RAYON_NUM_THREADS, before it is first imported in the process."""
    from rustymimi import Tokenizer  # pyright: ignore[reportMissingImports]

    model: Any = Tokenizer(checkpoints.moshi, num_codebooks=num_codebooks)

    def encode(clip: np.ndarray) -> np.ndarray:
        model.reset()  # its positions go on from clip to clip, and end at 8192
        return np.asarray(model.encode(_whole_frames(clip).numpy()))[0]

    return encode
