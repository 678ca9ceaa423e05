"""Split residual vector quantization: latents to codes and back. A code depends on its frame alone; no state."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from mimi.config import MimiConfig
from mimi.layouts import codebook_prefix
from mimi.matrix import Matrix

USAGE_FLOOR = 1e-5  # of the divisor cluster_usage, as official moshi has it
CANDIDATES = 4  # of which float32 can't tell the nearest for certain


def entries_of(weights: Mapping[str, Tensor], index: int, config: MimiConfig) -> Tensor:
    """[size, dim]: a codebook's entries, from the sums and counts that a checkpoint stores."""
    prefix = codebook_prefix(index, config)
    usage = weights[prefix + "cluster_usage"].clamp(min=USAGE_FLOOR)
    return weights[prefix + "embedding_sum"] / usage[:, None]


class Quantizer:
    """The first `num_codebooks` codebooks. Distances are computed in float32 at least, whatever the model's dtype."""

    def __init__(self, weights: Mapping[str, Tensor], num_codebooks: int, config: MimiConfig, dtype: torch.dtype):
        self.num_codebooks, self.num_semantic = num_codebooks, config.num_semantic
        self.dtype = dtype = torch.promote_types(dtype, torch.float32)
        projections = [weights[f"quantizer.{split}.input_proj.weight"] for split in ("rvq_first", "rvq_rest")]
        self.project = [projection[:, :, 0].T.to(dtype).contiguous() for projection in projections]
        entries = [entries_of(weights, index, config) for index in range(num_codebooks)]
        self.half_norms = [(entry.square().sum(1) / 2).to(dtype) for entry in entries]
        self.entries = [entry.double() for entry in entries]
        self.opposites = [Matrix(-entry.T, dtype) for entry in entries]

    def encode(self, latents: Tensor) -> Tensor:
        """latents: [S, F, dimension] -> int64 codes [S, num_codebooks, F]: each the argmin of |e|^2 / 2 - r.e.

        That product in float32 is wrong by some 1e-6 of the distance where an entry is long beside it. So it only finds
        the `CANDIDATES` nearest; among them the distances themselves decide, in float64, as is the residual.
        """
        flat = latents.reshape(-1, latents.shape[-1]).to(self.project[0].dtype)
        codes = []
        residual = flat.double()
        for index, (opposites, entries) in enumerate(zip(self.opposites, self.entries, strict=True)):
            if index in (0, self.num_semantic):
                residual = torch.mm(flat, self.project[index >= self.num_semantic]).double()
            rough = opposites.product(residual.to(flat.dtype), bias=self.half_norms[index])
            near = rough.topk(min(CANDIDATES, len(entries)), 1, largest=False, sorted=False).indices
            # in the order of the entries, so that of equally near ones the first is taken
            near = near.sort(1).values
            away = functional.embedding(near, entries).sub_(residual[:, None])
            chosen = away.square().sum(2).argmin(1, keepdim=True)
            codes.append(near.gather(1, chosen)[:, 0])
            residual = away.gather(1, chosen[..., None].expand(-1, -1, away.shape[2]))[:, 0].neg_()
        return torch.stack(codes).view(self.num_codebooks, *latents.shape[:2]).transpose(0, 1)
