"""Runs a model's steps: on a GPU as a captured CUDA graph with copies that overlap it, on a CPU by a plain call.

It decides how a step is run and how its data travel; which clip is in which slot is its caller's affair.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

FRAME_SAMPLES = 1920  # of the published model
WARM_UP_STEPS = 3  # before a capture: libraries and scratch memory allocate on first use


class StepOutput(Protocol):
    """What a step of the model gives back (`mimi.model.Step`)."""

    @property
    def codes(self) -> Tensor: ...  # int64 [slots, num_codebooks, frames]
    @property
    def finite(self) -> Tensor: ...  # bool [slots]
    @property
    def state(self) -> Any: ...


class StepEncoder(Protocol):
    """The part of `mimi.Mimi` that a runner drives."""

    def new_state(self, slots: int) -> Any: ...
    def reset_slots(self, state: Any, mask: Tensor) -> Any: ...
    def encode_step(self, chunk: Tensor, state: Any, active: Tensor | None = None) -> StepOutput: ...


@dataclass(frozen=True, slots=True)
class SlotCodes:
    """codes: uint16 [slots, num_codebooks, frames]; finite: bool [slots]. Neither means anything without a chunk."""

    codes: np.ndarray
    finite: np.ndarray


class Pending(Protocol):
    """A step that was launched."""

    def result(self) -> SlotCodes:
        """Wait for the step, where it isn't done yet. To be called once, before the runner's ring comes round."""
        ...


class Runner(Protocol):
    """Steps of one model's slots. All calls come from one thread."""

    ahead: int  # steps that may be in flight while the next is launched

    def launch(self, chunks: Sequence[tuple[int, np.ndarray]], fresh: np.ndarray) -> Pending:
        """Begin a step.

        chunks: (slot, float32 [n]), n at most the runner's chunk; missing samples are zeros.
        fresh: bool [slots], those that are put at the start of a clip before the step.
        """
        ...


def step_runner(
    model: StepEncoder, slots: int, chunk_frames: int, device: torch.device, frame_samples: int = FRAME_SAMPLES
) -> Runner:
    """The runner for this device."""
    kind = StepRunner if device.type == "cuda" else PlainRunner
    return kind(model, slots, chunk_frames, device, frame_samples)


def use_precision(precision: str) -> torch.dtype:
    """The model's dtype for `float32`, `tf32` or `bfloat16`; and TF32 switched on, or off, for this process."""
    allowed = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


# ------------------------------------------------------------ CPU


@dataclass(frozen=True, slots=True)
class _Done:
    slot_codes: SlotCodes

    def result(self) -> SlotCodes:
        return self.slot_codes


class PlainRunner:
    """Calls the model; a step is as long as its longest chunk, since padding would be work for nothing."""

    ahead = 0

    def __init__(
        self,
        model: StepEncoder,
        slots: int,
        chunk_frames: int,
        device: torch.device | str = "cpu",
        frame_samples: int = FRAME_SAMPLES,
    ):
        self._model, self._slots, self._device = model, slots, torch.device(device)
        self._frame_samples, self._most = frame_samples, chunk_frames * frame_samples
        self._state = model.new_state(slots)

    def launch(self, chunks: Sequence[tuple[int, np.ndarray]], fresh: np.ndarray) -> _Done:
        """As `Runner`."""
        if fresh.any():
            self._state = self._model.reset_slots(self._state, torch.from_numpy(fresh).to(self._device))
        longest = max(len(chunk) for _, chunk in chunks)
        assert 0 < longest <= self._most
        samples = np.zeros((self._slots, 1, -(-longest // self._frame_samples) * self._frame_samples), np.float32)
        active = np.zeros(self._slots, bool)
        for slot, chunk in chunks:
            samples[slot, 0, : len(chunk)] = chunk
            active[slot] = True
        step = self._model.encode_step(
            torch.from_numpy(samples).to(self._device), self._state, torch.from_numpy(active).to(self._device)
        )
        self._state = step.state
        codes = step.codes.to("cpu").numpy().astype(np.uint16)
        return _Done(SlotCodes(codes, step.finite.to("cpu").numpy()))


# ------------------------------------------------------------ CUDA


class _Transit:
    """Buffers of one step in flight: host memory that is pinned, and its copies on the device."""

    def __init__(self, samples: Tensor, flags: Tensor, codes: Tensor, finite: Tensor):
        """The tensors that the graph reads and writes, as patterns."""

        def pinned(like: Tensor) -> Tensor:
            return torch.zeros(like.shape, dtype=like.dtype, pin_memory=True)

        self.samples, self.flags, self.codes, self.finite = map(pinned, (samples, flags, codes, finite))
        self.device_samples, self.device_flags = torch.empty_like(samples), torch.empty_like(flags)
        self.device_codes, self.device_finite = torch.empty_like(codes), torch.empty_like(finite)
        self.arrived, self.computed = torch.cuda.Event(), torch.cuda.Event()
        self.home = torch.cuda.Event(blocking=True)  # its waiter sleeps: decoding wants the core

    def result(self) -> SlotCodes:
        """As `Pending`."""
        self.home.synchronize()
        return SlotCodes(self.codes.numpy().astype(np.uint16), self.finite.numpy().copy())


class StepRunner:
    """Steps of one fixed shape, captured once in a CUDA graph; resetting slots is a part of it.

    Three streams: samples go in, the graph runs, codes come out. A step that is launched while another runs has its
    samples on the device before that one ends. Nothing in a step waits for the host, and the host waits only for
    codes, of a step before the one that runs.
    """

    ahead = 1

    def __init__(
        self,
        model: StepEncoder,
        slots: int,
        chunk_frames: int,
        device: torch.device | str = "cuda",
        frame_samples: int = FRAME_SAMPLES,
    ):
        self._model, self._device = model, torch.device(device)
        with torch.cuda.device(self._device):
            self._state = model.new_state(slots)
            self._samples = torch.zeros(slots, 1, chunk_frames * frame_samples, device=self._device)
            self._flags = torch.zeros(2, slots, dtype=torch.bool, device=self._device)  # active, fresh
            self._in, self._compute, self._out = (torch.cuda.Stream() for _ in range(3))
            self._graph, self._codes, self._finite = self._capture()
            buffers = self._samples, self._flags, self._codes, self._finite
            self._ring = [_Transit(*buffers) for _ in range(self.ahead + 1)]
            torch.cuda.synchronize()
        self._launched = 0

    def launch(self, chunks: Sequence[tuple[int, np.ndarray]], fresh: np.ndarray) -> _Transit:
        """As `Runner`."""
        transit = self._ring[self._launched % len(self._ring)]
        self._launched += 1
        samples, flags = transit.samples.numpy(), transit.flags.numpy()
        flags[0], flags[1] = False, fresh
        for slot, chunk in chunks:  # what lies in the other slots stays: it is computed on and leads nowhere
            samples[slot, 0, : len(chunk)] = chunk
            samples[slot, 0, len(chunk) :] = 0
            flags[0, slot] = True
        with torch.cuda.stream(self._in):
            transit.device_samples.copy_(transit.samples, non_blocking=True)
            transit.device_flags.copy_(transit.flags, non_blocking=True)
            transit.arrived.record()
        with torch.cuda.stream(self._compute):
            self._compute.wait_event(transit.arrived)
            self._samples.copy_(transit.device_samples)
            self._flags.copy_(transit.device_flags)
            self._graph.replay()
            transit.device_codes.copy_(self._codes)
            transit.device_finite.copy_(self._finite)
            transit.computed.record()
        with torch.cuda.stream(self._out):
            self._out.wait_event(transit.computed)
            transit.codes.copy_(transit.device_codes, non_blocking=True)
            transit.finite.copy_(transit.device_finite, non_blocking=True)
            transit.home.record()
        return transit

    def _capture(self) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
        self._compute.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._compute):
            for _ in range(WARM_UP_STEPS):
                self._once()
        self._compute.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._compute):
            codes, finite = self._once()
        return graph, codes, finite

    def _once(self) -> tuple[Tensor, Tensor]:
        """A step on the fixed buffers; the state is moved on in place, at addresses that don't change."""
        active, fresh = self._flags
        state = self._model.reset_slots(self._state, fresh)
        step = self._model.encode_step(self._samples, state, active)
        assert step.state is self._state
        return step.codes.to(torch.int32), step.finite
