"""Are these codes right? Judges each against the nearest entry in float64, along the residuals of the codes given.

Two correct float32 implementations differ where two entries are equally near, and one such tie changes every later
codebook of its frame. So equality is the wrong test: the excess says how much farther the chosen entry lies.
"""

import torch
from torch import Tensor

from mimi.model import Mimi
from mimi.quantizer import Quantizer

LIMIT = 1e-6  # of the excess: official float32 stays below 1e-7, a wrong context or padding is far above
CHUNK_FRAMES = 50


def excess_of(mimi: Mimi, pcm: Tensor, codes: Tensor) -> Tensor:
    """How much farther each code's entry is than the nearest: float64 [K, T], 0 for the nearest itself.

    mimi: in float64, with at least K codebooks. pcm: [N] at 24 kHz. codes: integers [K, T], T = ceil(N / 1920).
    In squared distances, (chosen - nearest) / (nearest + 0.001 |r|^2), r the projected latent: the floor keeps an
    entry that sits on the latent from dividing by nothing. Runs in the memory of a chunk, however long the sound.
    Raises ValueError where shapes or types don't fit.
    """
    frame = mimi.config.frame_samples
    if mimi.dtype != torch.float64:
        raise ValueError(f"mimi: computes in {mimi.dtype}; an audit needs torch.float64")
    if codes.shape != (codes.shape[0], -(-pcm.shape[0] // frame)) or codes.shape[0] > mimi.num_codebooks:
        raise ValueError(f"codes: shape {list(codes.shape)} doesn't fit {pcm.shape[0]} samples")
    state = mimi.new_state(1)
    pieces = [torch.empty(codes.shape[0], 0, dtype=torch.float64, device=mimi.device)]
    for start in range(0, codes.shape[1], CHUNK_FRAMES):
        part = codes[:, start : start + CHUNK_FRAMES].to(mimi.device, torch.int64)
        chunk = pcm[start * frame : (start + part.shape[1]) * frame].to(mimi.device, torch.float64)
        chunk = torch.nn.functional.pad(chunk, (0, part.shape[1] * frame - chunk.shape[0]))
        latents = mimi.latents_step(chunk[None, None], state)[0]
        pieces.append(latent_excess(mimi.quantizer, latents, part))
    return torch.cat(pieces, 1)


def latent_excess(quantizer: Quantizer, latents: Tensor, codes: Tensor) -> Tensor:
    """As `excess_of`, from float64 latents [T, dimension] and int64 codes [K, T]."""
    rows = []
    residual = floor = latents
    for index, chosen in enumerate(codes):
        if index in (0, quantizer.num_semantic):
            residual = torch.mm(latents, quantizer.project[index >= quantizer.num_semantic])
            floor = 1e-3 * residual.square().sum(1)
        entries = quantizer.entries[index]
        distances = torch.cdist(residual, entries, compute_mode="donot_use_mm_for_euclid_dist").square()
        nearest = distances.amin(1)
        rows.append((distances.gather(1, chosen[:, None])[:, 0] - nearest) / (nearest + floor))
        residual = residual - entries[chosen]
    return torch.stack(rows)
