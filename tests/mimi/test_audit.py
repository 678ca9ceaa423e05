"""The audit passes the model's own codes and ties, and fails wrong ones in every codebook."""

import pytest
import torch

from mimi.audit import LIMIT, excess_of
from tests.mimi.tiny import CONFIG, FRAME, noise, tiny_mimi


def test_the_models_own_codes_have_no_excess_and_float32_ones_pass() -> None:
    pcm = noise(130 * FRAME + 5, 0)  # several chunks, the last one partial
    codes = tiny_mimi().encode(pcm[None, None])[0]
    assert excess_of(tiny_mimi(), pcm, codes).max() == 0
    single = tiny_mimi(torch.float32).encode(pcm[None, None].float())[0]
    assert excess_of(tiny_mimi(), pcm.float(), single).max() <= LIMIT


def test_a_wrong_code_fails_in_every_codebook() -> None:
    pcm = noise(60 * FRAME, 1)
    codes = tiny_mimi().encode(pcm[None, None])[0]
    for index in range(CONFIG.num_codebooks):
        wrong = codes.clone()
        wrong[index] = (wrong[index] + 1) % CONFIG.codebook_size
        excess = excess_of(tiny_mimi(), pcm, wrong)
        assert (excess[index] > LIMIT).all()
        assert (excess[:index] == 0).all()


def test_what_does_not_fit_is_refused() -> None:
    codes = torch.zeros(4, 3, dtype=torch.int64)
    for mimi, samples, said in (
        (tiny_mimi(torch.float32), 3 * FRAME, "float64"),
        (tiny_mimi(), 4 * FRAME, "doesn't fit"),
        (tiny_mimi(), 2 * FRAME, "doesn't fit"),
    ):
        with pytest.raises(ValueError, match=said):
            excess_of(mimi, torch.zeros(samples), codes)
