"""Decoding: the same sound whatever the chunks, any number of codebooks, wrong codes refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mimi.model import Mimi
from tests.mimi.tiny import CONFIG, FRAME, tensors, tiny_mimi


def some_codes(batch: int, frames: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(CONFIG.codebook_size, (batch, CONFIG.num_codebooks, frames), generator=generator)


@given(st.lists(st.integers(1, 70), min_size=1, max_size=6), st.integers(1, CONFIG.num_codebooks))
@settings(deadline=None, max_examples=25)
def test_sound_does_not_depend_on_the_chunks(chunks: list[int], num_codebooks: int) -> None:
    mimi = tiny_mimi()
    codes = some_codes(1, sum(chunks))[:, :num_codebooks]
    state = mimi.new_decoder_state(1)
    pieces = [mimi.decode_step(part, state)[0] for part in codes.split(chunks, 2)]
    whole = mimi.decode(codes)
    assert whole.shape == (1, 1, sum(chunks) * FRAME)
    torch.testing.assert_close(torch.cat(pieces, 2), whole, rtol=0, atol=1e-12)


def test_each_clip_of_a_batch_decodes_as_alone_and_fewer_codebooks_sound_different() -> None:
    codes = some_codes(3, 30)
    together = tiny_mimi().decode(codes)
    for index in range(3):
        torch.testing.assert_close(tiny_mimi().decode(codes[index : index + 1])[0], together[index], rtol=0, atol=1e-12)
    assert not torch.allclose(tiny_mimi().decode(codes[:, :2]), together)


def test_an_inactive_slot_does_not_move_and_a_reset_one_starts_again() -> None:
    mimi, state = tiny_mimi(), tiny_mimi().new_decoder_state(2)
    codes = some_codes(2, 8)
    first, _ = mimi.decode_step(codes, state)
    mimi.decode_step(codes, state, torch.tensor([True, False]))
    mimi.reset_slots(state, torch.tensor([True, False]))
    again, _ = mimi.decode_step(codes, state)
    torch.testing.assert_close(again[0], first[0], rtol=0, atol=1e-12)
    whole = mimi.decode(codes[1:].repeat(1, 1, 2))[0]
    torch.testing.assert_close(torch.cat([first[1], again[1]], 1), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (torch.zeros(1, 5, 3, dtype=torch.int64), "codebooks"),
        (torch.zeros(1, 0, 3, dtype=torch.int64), "codebooks"),
        (torch.zeros(4, 3, dtype=torch.int64), "codebooks"),
        (torch.zeros(1, 4, 3), "integers"),
        (torch.full((1, 4, 3), 24), "24"),
        (torch.full((1, 4, 3), -1), "-1"),
    ],
)
def test_wrong_codes_are_refused(codes: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny_mimi().decode(codes)


def test_a_model_without_decoder_tensors_says_so() -> None:
    encoder_only = {name: tensor for name, tensor in tensors().items() if not name.startswith("decoder")}
    mimi = Mimi(CONFIG, encoder_only, num_codebooks=4)
    with pytest.raises(ValueError, match="without the decoder"):
        mimi.decode(some_codes(1, 3))


def test_no_frames_give_no_sound() -> None:
    assert tiny_mimi().decode(some_codes(2, 0)).shape == (2, 1, 0)
