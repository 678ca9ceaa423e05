"""The engine: what goes in comes out right, whatever shares the model with it."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.engine import Cancelled, Engine
from pipeline.errors import AudioError
from tests.pipeline.fakes import FakeEncoder, FakeStream, codes_of, whole_numbers


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30_000), min_size=1, max_size=9),
    blocks=st.lists(st.integers(1, 9_000), min_size=1, max_size=4),
    slots=st.integers(1, 4),
    chunk_frames=st.integers(1, 5),
)
def test_codes_do_not_depend_on_slots_chunks_blocks_or_neighbours(lengths, blocks, slots, chunk_frames):
    clips = [whole_numbers(n, seed) for seed, n in enumerate(lengths)]
    with Engine(FakeEncoder(), slots=slots, chunk_frames=chunk_frames, decode_threads=2) as engine:
        futures = [engine.submit(lambda c=c: FakeStream(c, blocks)).future for c in clips]
        for samples, future in zip(clips, futures, strict=True):
            encoded = future.result(timeout=30)
            assert np.array_equal(encoded.codes, codes_of(samples))
            assert encoded.duration == len(samples) / 24000
            assert encoded.codes.dtype == np.uint16


def test_a_clip_of_exactly_one_chunk_has_no_extra_frame():
    with Engine(FakeEncoder(), slots=1, chunk_frames=2) as engine:
        for n, frames in ((1, 1), (1920, 1), (1921, 2), (3840, 2), (3841, 3)):
            assert engine.submit(lambda n=n: FakeStream(whole_numbers(n))).future.result(30).codes.shape == (3, frames)


def test_a_stream_that_fails_fails_its_clip_alone():
    good, bad = whole_numbers(20_000), FakeStream(whole_numbers(9_000), error=AudioError("truncated", "cut"))
    with Engine(FakeEncoder(), slots=2, chunk_frames=1) as engine:
        first = engine.submit(lambda: bad)
        second = engine.submit(lambda: FakeStream(good))
        with pytest.raises(AudioError, match="cut"):
            first.future.result(30)
        assert np.array_equal(second.future.result(30).codes, codes_of(good))
    assert bad.closed


def test_an_empty_recording_is_an_error_of_kind_empty():
    with Engine(FakeEncoder(), slots=1, chunk_frames=1) as engine, pytest.raises(AudioError) as caught:
        engine.submit(lambda: FakeStream(np.empty(0, np.float32))).future.result(30)
    assert caught.value.kind == "empty"


def test_latents_that_are_not_finite_fail_the_clip_and_leave_the_slot_clean():
    poisoned = np.full(4000, np.inf, np.float32)
    good = whole_numbers(9000)
    with Engine(FakeEncoder(), slots=1, chunk_frames=1) as engine:
        first = engine.submit(lambda: FakeStream(poisoned))
        second = engine.submit(lambda: FakeStream(good))
        with pytest.raises(AudioError) as caught:
            first.future.result(30)
        assert (caught.value.kind, caught.value.stage) == ("not_finite", "encode")
        assert np.array_equal(second.future.result(30).codes, codes_of(good))


def test_cancelling_frees_the_slot_for_the_next_clip():
    gate = threading.Event()

    class Endless(FakeStream):
        def __iter__(self):
            while not gate.is_set():
                yield np.zeros(1920, np.float32)

    good = whole_numbers(5000)
    with Engine(FakeEncoder(), slots=1, chunk_frames=1, decode_threads=2) as engine:
        endless = engine.submit(lambda: Endless(good))
        waiting = engine.submit(lambda: FakeStream(good))
        engine.cancel(endless)
        with pytest.raises(Cancelled):
            endless.future.result(30)
        assert np.array_equal(waiting.future.result(30).codes, codes_of(good))
    gate.set()


def test_a_model_that_fails_fails_every_clip_and_the_next_submit():
    class Broken(FakeEncoder):
        def encode_step(self, chunk, state, active=None):
            raise MemoryError("no room")

    with Engine(Broken(), slots=1, chunk_frames=1) as engine:
        futures = [engine.submit(lambda: FakeStream(whole_numbers(5000))).future for _ in range(2)]
        for future in futures:
            with pytest.raises(MemoryError):
                future.result(30)
        with pytest.raises(RuntimeError, match="failed"):
            engine.submit(lambda: FakeStream(whole_numbers(1)))


def test_closing_ends_clips_that_are_not_finished():
    engine = Engine(FakeEncoder(), slots=1, chunk_frames=1)
    hold = threading.Event()

    class Slow(FakeStream):
        def __iter__(self):
            hold.wait(30)
            yield np.zeros(10, np.float32)

    clip = engine.submit(lambda: Slow(np.zeros(1)))
    engine.close()
    hold.set()
    with pytest.raises(Cancelled):
        clip.future.result(30)


def test_a_decoder_that_hangs_is_reported_as_stuck():
    hold, began = threading.Event(), threading.Event()

    class Hangs(FakeStream):
        def __iter__(self):
            began.set()
            hold.wait(30)
            yield np.zeros(10, np.float32)

    with Engine(FakeEncoder(), slots=1, chunk_frames=1) as engine:
        clip = engine.submit(lambda: Hangs(np.zeros(1)))
        began.wait(30)
        assert engine.stuck(float("inf"), 600) == [clip]
        assert engine.stuck(0.0, 600) == []
        hold.set()
        clip.future.result(30)
        assert engine.stuck(float("inf"), 600) == []
