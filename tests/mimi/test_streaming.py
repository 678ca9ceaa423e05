"""A clip's codes are the same function of its samples: whatever the chunks, the slot, the neighbours, the history."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mimi.transformer import plain_attention
from tests.mimi.tiny import CONFIG, FRAME, noise, tiny_mimi

SEEDS = st.integers(0, 2**32 - 1)


def whole_latents(pcm: Tensor) -> Tensor:
    """[frames, dimension], of one step over all of pcm [samples] completed with zeros."""
    mimi = tiny_mimi()
    padded = torch.nn.functional.pad(pcm, (0, -len(pcm) % FRAME))
    return mimi.latents_step(padded[None, None], mimi.new_state(1))[0]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), SEEDS)
@settings(deadline=None, max_examples=40)
def test_latents_do_not_depend_on_the_chunks(chunks: list[int], seed: int) -> None:
    mimi, state = tiny_mimi(), tiny_mimi().new_state(1)
    pcm = noise(sum(chunks) * FRAME, seed)
    pieces = [mimi.latents_step(part[None, None], state)[0] for part in pcm.split([n * FRAME for n in chunks])]
    torch.testing.assert_close(torch.cat(pieces), whole_latents(pcm), rtol=0, atol=1e-12)


@given(st.integers(1, 900), SEEDS)
@settings(deadline=None, max_examples=40)
def test_a_clip_of_any_length_is_completed_with_zeros(samples: int, seed: int) -> None:
    pcm = noise(samples, seed)
    codes = tiny_mimi().encode(pcm[None, None])
    assert codes.shape == (1, CONFIG.num_codebooks, -(-samples // FRAME))
    completed = torch.nn.functional.pad(pcm, (0, -samples % FRAME))
    assert torch.equal(codes, tiny_mimi().encode(completed[None, None]))


def test_no_samples_give_no_frames() -> None:
    assert tiny_mimi().encode(torch.zeros(2, 1, 0)).shape == (2, CONFIG.num_codebooks, 0)


@given(
    slots=st.integers(1, 4),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    steps=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 15), st.integers(0, 15)), min_size=1, max_size=8),
)
@settings(deadline=None, max_examples=40)
def test_clips_that_share_slots_get_the_codes_they_have_alone(
    slots: int, lengths: list[int], steps: list[tuple[int, int, int]]
) -> None:
    """Plays an engine. A step is its frames, which free slots take a clip (bits), which busy slots move (bits)."""
    mimi, state = tiny_mimi(), tiny_mimi().new_state(slots)
    clips = [noise(n * FRAME, seed) for seed, n in enumerate(lengths)]
    found: list[list[Tensor]] = [[] for _ in clips]
    waiting, playing, place = list(range(len(clips))), [-1] * slots, [0] * slots
    for turn in range(200):
        frames, takes, moves = steps[turn % len(steps)] if turn < 40 else (5, 15, 15)
        fresh = [clip < 0 and takes >> slot & 1 == 1 for slot, clip in enumerate(playing)]
        for slot in range(slots):
            if fresh[slot]:
                playing[slot], place[slot] = (waiting.pop(0) if waiting else -1), 0
        mimi.reset_slots(state, torch.tensor(fresh))
        chunk = torch.full((slots, 1, frames * FRAME), torch.nan, dtype=torch.float64)  # idle slots hold poison
        active = [clip >= 0 and moves >> slot & 1 == 1 for slot, clip in enumerate(playing)]
        for slot, clip in enumerate(playing):
            if active[slot]:
                piece = clips[clip][place[slot] * FRAME : (place[slot] + frames) * FRAME]
                chunk[slot, 0] = torch.nn.functional.pad(piece, (0, frames * FRAME - len(piece)))
        step = mimi.encode_step(chunk, state, torch.tensor(active))
        for slot, clip in enumerate(playing):
            if active[slot]:
                assert step.finite[slot]
                found[clip].append(step.codes[slot, :, : lengths[clip] - place[slot]])
                place[slot] += frames
                playing[slot] = clip if place[slot] < lengths[clip] else -1
        if not waiting and max(playing) < 0:
            break
    for clip, pieces in zip(clips, found, strict=True):
        assert torch.equal(torch.cat(pieces, 1), mimi.encode(clip[None, None])[0])


def test_an_inactive_slot_does_not_move() -> None:
    mimi, state = tiny_mimi(), tiny_mimi().new_state(2)
    mimi.encode_step(noise(10 * FRAME, 1).view(2, 1, -1), state)
    before = [tensor.clone() for tensor in state.tensors()]
    mimi.encode_step(noise(10 * FRAME, 2).view(2, 1, -1), state, torch.tensor([True, False]))
    for old, new in zip(before, state.tensors(), strict=True):
        assert torch.equal(old[1], new[1])
        assert not torch.equal(old[0], new[0])


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_a_clip_that_is_not_finite_harms_neither_neighbours_nor_the_next_clip(poison: float) -> None:
    mimi, state = tiny_mimi(), tiny_mimi().new_state(3)
    good = noise(6 * FRAME, 3)
    alone = mimi.encode(good[None, None])[0]
    chunk = good.repeat(3, 1)[:, None].clone()
    chunk[1, 0, 40] = poison
    step = mimi.encode_step(chunk, state)
    assert step.finite.tolist() == [True, False, True]
    assert torch.equal(step.codes[0], alone)
    assert torch.equal(step.codes[2], alone)
    mimi.reset_slots(state, torch.tensor([False, True, False]))
    step = mimi.encode_step(good.repeat(3, 1)[:, None], state)
    assert step.finite.all()
    assert torch.equal(step.codes[1], alone)


def test_a_step_updates_the_state_where_it_lies() -> None:
    mimi, state = tiny_mimi(), tiny_mimi().new_state(2)
    before = [tensor.data_ptr() for tensor in state.tensors()]
    for seed in range(3):
        mimi.encode_step(noise(4 * FRAME, seed).view(2, 1, -1), state, torch.tensor([True, seed == 1]))
        mimi.reset_slots(state, torch.tensor([False, seed == 1]))
    assert [tensor.data_ptr() for tensor in state.tensors()] == before


def test_latents_a_day_into_a_recording_are_those_at_its_start() -> None:
    """Attention sees differences of positions alone, however large the positions are."""
    mimi = tiny_mimi()
    start, late = mimi.new_state(1), mimi.new_state(1)
    with torch.inference_mode():
        late.positions.fill_(24 * 3600 * 25)
    pcm = noise(100 * FRAME, 4)[None, None]
    one, other = mimi.latents_step(pcm, start), mimi.latents_step(pcm, late)
    assert not torch.allclose(one[:, :2], other[:, :2])  # at the start, the late one has a (silent) past
    torch.testing.assert_close(one[:, 60:], other[:, 60:], rtol=0, atol=1e-8)


def test_attention_by_products_is_the_fused_one() -> None:
    query, keys, values = (noise(2 * 3 * n * 8, n).view(2, 3, n, 8) for n in (5, 9, 9))
    mask = torch.where(noise(2 * 5 * 9, 0).view(2, 1, 5, 9) > -0.2, 0.0, -torch.inf).double()
    mask[..., 0] = 0
    fused = torch.nn.functional.scaled_dot_product_attention(query, keys, values, mask)
    torch.testing.assert_close(plain_attention(query, keys, values, mask), fused, rtol=0, atol=1e-14)


def test_bfloat16_runs_and_its_codes_are_codes() -> None:
    codes = tiny_mimi(torch.bfloat16).encode(noise(30 * FRAME, 6)[None, None].float())
    assert codes.shape == (1, CONFIG.num_codebooks, 30)
    assert codes.min() >= 0 and codes.max() < CONFIG.codebook_size


def test_two_threads_share_a_model() -> None:
    from concurrent.futures import ThreadPoolExecutor

    clips = [noise(200 * FRAME, seed)[None, None] for seed in range(8)]
    expected = [tiny_mimi().encode(clip) for clip in clips]
    with ThreadPoolExecutor(2) as pool:
        for one, other in zip(expected, pool.map(tiny_mimi().encode, clips), strict=True):
            assert torch.equal(one, other)
