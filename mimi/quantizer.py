"""Split residual vector quantization: latents to codes and back. A code depends on its frame alone; no state."""

from collections.abc import Mapping

import torch
from torch import Tensor

from mimi.config import MimiConfig
from mimi.layouts import codebook_prefix

USAGE_FLOOR = 1e-5  # of the divisor cluster_usage, as official moshi has it


def entries_of(weights: Mapping[str, Tensor], index: int, config: MimiConfig) -> Tensor:
    """[size, dim]: a codebook's entries, from the sums and counts that a checkpoint stores."""
    prefix = codebook_prefix(index, config)
    usage = weights[prefix + "cluster_usage"].clamp(min=USAGE_FLOOR)
    return weights[prefix + "embedding_sum"] / usage[:, None]


class Quantizer:
    """The first `num_codebooks` codebooks. Distances are computed in float32 at least, whatever the model's dtype."""

    def __init__(self, weights: Mapping[str, Tensor], num_codebooks: int, config: MimiConfig, dtype: torch.dtype):
        self.num_codebooks, self.num_semantic = num_codebooks, config.num_semantic
        dtype = torch.promote_types(dtype, torch.float32)
        projections = [weights[f"quantizer.{split}.input_proj.weight"] for split in ("rvq_first", "rvq_rest")]
        self.project = [projection[:, :, 0].T.to(dtype).contiguous() for projection in projections]
        entries = [entries_of(weights, index, config) for index in range(num_codebooks)]
        self.half_norms = [(entry.square().sum(1) / 2).to(dtype) for entry in entries]
        self.entries = [entry.to(dtype) for entry in entries]

    def encode(self, latents: Tensor) -> Tensor:
        """latents: [S, F, dimension] -> int64 codes [S, num_codebooks, F]: each the argmin of |e|^2 / 2 - r.e."""
        flat = latents.reshape(-1, latents.shape[-1]).to(self.project[0].dtype)
        codes = []
        residual = flat
        for index, entries in enumerate(self.entries):
            if index in (0, self.num_semantic):
                residual = torch.mm(flat, self.project[index >= self.num_semantic])
            distances = torch.addmm(self.half_norms[index], residual, entries.T, alpha=-1)
            nearest = distances.argmin(1)
            residual = residual.sub_(entries[nearest])
            codes.append(nearest)
        return torch.stack(codes).view(self.num_codebooks, *latents.shape[:2]).transpose(0, 1)
