"""Steps by a runner: the codes of the model itself, whatever shares the step; on a GPU the graph's are the CPU's."""

import numpy as np
import pytest
import torch

from mimi.graph import PlainRunner, StepRunner, step_runner, use_precision
from mimi.model import Mimi
from tests.mimi.tiny import CONFIG, FRAME, noise, tensors, tiny_mimi

CHUNK_FRAMES = 3


def through(runner: PlainRunner | StepRunner, slots: int, clips: list[np.ndarray]) -> list[np.ndarray]:
    """uint16 [K, frames] of each clip: more clips than slots, a slot's next clip right after its last."""
    size = CHUNK_FRAMES * FRAME
    waiting = [(i, [clip[at : at + size] for at in range(0, len(clip), size)]) for i, clip in enumerate(clips)]
    held: list[tuple[int, list[np.ndarray]] | None] = [None] * slots
    codes: list[list[np.ndarray]] = [[] for _ in clips]
    flying = []
    while waiting or any(held) or flying:
        fresh = np.zeros(slots, bool)
        work = []
        for slot in range(slots):
            if held[slot] is None and waiting:
                held[slot], fresh[slot] = waiting.pop(0), True
            if (clip := held[slot]) is not None:
                work.append((slot, clip[0], clip[1].pop(0)))
                held[slot] = clip if clip[1] else None
        if work:
            flying.append((work, runner.launch([(slot, chunk) for slot, _, chunk in work], fresh)))
        if not work or len(flying) > runner.ahead:
            done_work, pending = flying.pop(0)
            done = pending.result()
            for slot, clip_index, chunk in done_work:
                assert done.finite[slot]
                codes[clip_index].append(done.codes[slot, :, : -(-len(chunk) // FRAME)])
    return [np.concatenate(parts, 1) for parts in codes]


def clips() -> list[np.ndarray]:
    lengths = (100, 1, 36, 73, 12, 150)
    return [noise(length, seed).float().numpy() for seed, length in enumerate(lengths)]


def expected(mimi: Mimi) -> list[np.ndarray]:
    return [mimi.encode(torch.from_numpy(clip)[None, None])[0].numpy() for clip in clips()]


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_codes_are_those_of_the_model_by_itself(slots: int) -> None:
    runner = PlainRunner(tiny_mimi(), slots, CHUNK_FRAMES, frame_samples=FRAME)
    for ours, right in zip(through(runner, slots, clips()), expected(tiny_mimi()), strict=True):
        assert ours.dtype == np.uint16
        assert np.array_equal(ours, right)


def test_sound_that_is_not_finite_is_told_of_its_slot_alone() -> None:
    runner = step_runner(tiny_mimi(), 2, CHUNK_FRAMES, torch.device("cpu"), FRAME)
    bad = np.full(FRAME, np.nan, np.float32)
    done = runner.launch([(0, bad), (1, np.ones(FRAME, np.float32))], np.ones(2, bool)).result()
    assert done.finite.tolist() == [False, True]


@pytest.mark.parametrize(
    ("precision", "dtype", "tf32"),
    [("bfloat16", torch.bfloat16, False), ("tf32", torch.float32, True), ("float32", torch.float32, False)],
)
def test_a_precision_is_a_dtype_and_the_tf32_switches(precision: str, dtype: torch.dtype, tf32: bool) -> None:
    assert use_precision(precision) == dtype
    assert torch.backends.cuda.matmul.allow_tf32 == torch.backends.cudnn.allow_tf32 == tf32
    use_precision("float32")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, there is none here")
@pytest.mark.parametrize("slots", [1, 4])
def test_a_captured_graph_gives_the_codes_of_the_cpu(slots: int) -> None:
    mimi = Mimi(CONFIG, tensors(), num_codebooks=CONFIG.num_codebooks, device="cuda", dtype=torch.float64)
    runner = StepRunner(mimi, slots, CHUNK_FRAMES, "cuda", FRAME)
    for ours, right in zip(through(runner, slots, clips()), expected(tiny_mimi()), strict=True):
        assert np.array_equal(ours, right)
