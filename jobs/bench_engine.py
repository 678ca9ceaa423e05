"""The engine as benchmarks run it: laid out as the pipeline would on so many CPUs, fed with decoded sound."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipeline.records import SAMPLE_RATE

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jobs.peers import Encode
    from mimi import Mimi
    from pipeline.engine import Engine


@dataclass(frozen=True, slots=True)
class Layout:
    """How the engine runs: so many engines, each with torch threads and slots of its own."""

    engines: int
    threads: int  # of each engine
    slots: int
    chunk_frames: int

    @property
    def words(self) -> str:
        plural = "s" if self.engines > 1 else ""
        slots = f", {self.slots} slots" if self.slots > 1 else ""
        threads = f" of {self.threads} threads" if self.threads > 1 else ""
        return f"{self.engines} engine{plural}{threads}{slots}, {self.chunk_frames / 12.5:g} s a chunk"


class ArrayStream:
    """Samples that are decoded already, as the engine takes them."""

    num_channels, sample_rate = 1, SAMPLE_RATE

    def __init__(self, samples: np.ndarray):
        self.samples = 0
        self._array = samples

    def __iter__(self) -> Iterator[np.ndarray]:
        self.samples = len(self._array)
        yield self._array

    def close(self) -> None:
        pass


@contextmanager
def our_encoder(mimi: "Mimi", layout: Layout) -> "Iterator[Encode]":
    """The engine as the pipeline runs it; where it runs several processes, here several engines share the model."""
    import torch

    from pipeline.engine import Engine

    with ExitStack() as stack:
        device = str(mimi.device)
        engines = [
            stack.enter_context(
                Engine(mimi, slots=layout.slots, chunk_frames=layout.chunk_frames, device=device, decode_threads=1)
            )
            for _ in range(layout.engines)
        ]

        def encode(clips: Sequence[np.ndarray]) -> list[np.ndarray]:
            before = torch.get_num_threads()
            torch.set_num_threads(layout.threads)
            try:
                return _shared_out(engines, clips)
            finally:
                torch.set_num_threads(before)

        yield encode


def _shared_out(engines: "Sequence[Engine]", clips: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Clips go to the engine that has the least to do, a few ahead, as shards go to actors."""
    from concurrent.futures import FIRST_COMPLETED, wait

    window = 2 * engines[0].slots + 2  # as a shard's
    held: list[dict[Future, int]] = [{} for _ in engines]
    codes: dict[int, np.ndarray] = {}
    waiting = list(range(len(clips)))[::-1]
    while waiting or any(held):
        while waiting and min(map(len, held)) < window:
            index = waiting.pop()
            place = min(range(len(engines)), key=lambda i: sum(len(clips[c]) for c in held[i].values()))
            if len(held[place]) >= window:
                place = min(range(len(engines)), key=lambda i: len(held[i]))
            clip = engines[place].submit(lambda index=index: ArrayStream(clips[index]))
            held[place][clip.future] = index
        finished = wait([future for each in held for future in each], return_when=FIRST_COMPLETED).done
        for each in held:
            for future in finished & each.keys():
                codes[each.pop(future)] = future.result().codes
    return [codes[index] for index in range(len(clips))]


def layouts(threads: int) -> list[Layout]:
    """As the pipeline would run on so many CPUs, first; and one engine on all of them."""
    from jobs.config import ModelConfig, RayConfig
    from jobs.resources import Machine, resolve_resources

    resources, _ = resolve_resources(ModelConfig(device="cpu"), RayConfig(), Machine(threads, 0))
    assert resources is not None and resources.actors != "auto"
    chosen = Layout(resources.actors, resources.threads, resources.slots, resources.chunk_frames)
    whole = Layout(1, threads, chosen.slots, chosen.chunk_frames)
    return [chosen] if whole == chosen else [chosen, whole]
