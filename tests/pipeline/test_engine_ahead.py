"""The engine with steps in flight, as on a GPU: results come a step late, and nothing else changes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimi.graph import PlainRunner, SlotCodes
from pipeline.engine import Engine
from pipeline.errors import AudioError
from tests.pipeline.fakes import FakeEncoder, FakeStream, codes_of, whole_numbers


@dataclass
class Late:
    """A step that isn't computed before its result is asked for, or the next but one is launched."""

    runner: "LateRunner"
    slot_codes: SlotCodes
    number: int

    def result(self) -> SlotCodes:
        assert self.runner.launched - self.number <= self.runner.ahead + 1, "its buffers have been used again"
        return self.slot_codes


class LateRunner(PlainRunner):
    ahead = 1
    launched = 0

    def launch(self, chunks: Sequence[tuple[int, np.ndarray]], fresh: np.ndarray) -> Late:  # pyright: ignore
        number, self.launched = self.launched, self.launched + 1
        return Late(self, super().launch(chunks, fresh).slot_codes, number)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30_000), min_size=1, max_size=9),
    slots=st.integers(1, 4),
    chunk_frames=st.integers(1, 5),
)
def test_codes_are_right_with_a_step_in_flight(lengths: list[int], slots: int, chunk_frames: int) -> None:
    clips = [whole_numbers(n, seed) for seed, n in enumerate(lengths)]
    with Engine(FakeEncoder(), slots=slots, chunk_frames=chunk_frames, open_runner=LateRunner) as engine:
        futures = [engine.submit(lambda c=c: FakeStream(c)).future for c in clips]
        for samples, future in zip(clips, futures, strict=True):
            assert np.array_equal(future.result(timeout=30).codes, codes_of(samples))


@pytest.mark.parametrize("poisoned_samples", [1, 3000, 9000])
def test_a_clip_found_not_finite_after_its_slot_was_given_on_fails_alone(poisoned_samples: int) -> None:
    bad, good = np.full(poisoned_samples, np.inf, np.float32), whole_numbers(9000)
    with Engine(FakeEncoder(), slots=1, chunk_frames=1, open_runner=LateRunner) as engine:
        first = engine.submit(lambda: FakeStream(bad))
        second = engine.submit(lambda: FakeStream(good))
        with pytest.raises(AudioError) as caught:
            first.future.result(30)
        assert caught.value.kind == "not_finite"
        assert np.array_equal(second.future.result(30).codes, codes_of(good))
