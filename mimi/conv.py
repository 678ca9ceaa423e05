"""Causal convolutions as products over rows, channels last. Context goes in with the rows; no state is kept here.

Every convolution of Mimi is `y[t] = b + sum_j x[t - k + 1 + j] @ W_j` once the time axis is folded into rows:
a stride-1 convolution has rows of one sample; a kernel 2s with stride s has k = 2 and rows of s samples, `[T/s, s*C]`;
a transposed one has k = 2 and writes rows of s samples. Contiguous channels-last tensors fold without a copy, and
the products run at the machine's matrix-multiply rate.
"""

import math

import torch
from torch import Tensor

from mimi.matrix import Matrix
from mimi.state import Workspace


class RowConv:
    """k accumulating products over shifted rows.

    taps: [k, C_in, C_out], the oldest row's first; bias: [C_out] or None.
    """

    def __init__(self, taps: Tensor, bias: Tensor | None, dtype: torch.dtype):
        self.taps = [Matrix(tap, dtype) for tap in taps]
        self.bias = None if bias is None else bias.to(dtype)

    @property
    def context(self) -> int:
        """Rows of the past that a row needs."""
        return len(self.taps) - 1

    @property
    def in_width(self) -> int:
        """Width of an input row."""
        return self.taps[0].in_width

    @property
    def out_width(self) -> int:
        """Width of an output row."""
        return self.taps[0].out_width

    def __call__(self, rows: Tensor, out: Tensor, scratch: Workspace) -> Tensor:
        """rows: [S, context + T, C_in] -> out: [S, T, C_out], which is written and returned."""
        length = out.shape[1]
        self.taps[0].product(rows[:, :length], out, self.bias)
        for j, tap in enumerate(self.taps[1:], 1):
            tap.add_product(rows[:, j : j + length], out)
        return out


class PairConv(RowConv):
    """Two taps, computed two output rows at a time with three products for four (Winograd's F(2, 2)).

    With b the input rows, y[0] = b[1] (W0 + W1) + (b[0] - b[1]) W0 and y[1] = b[1] (W0 + W1) + (b[2] - b[1]) W1.
    Only in float32 on a CPU, where products are all the time there is and rounding leaves room for the differences.
    """

    def __init__(self, taps: Tensor, bias: Tensor | None, dtype: torch.dtype):
        super().__init__(taps, bias, dtype)
        self.pairwise = dtype == torch.float32 and taps.device.type == "cpu"
        if self.pairwise:
            self.both = Matrix(taps.sum(0), dtype)

    def __call__(self, rows: Tensor, out: Tensor, scratch: Workspace) -> Tensor:
        """As RowConv."""
        slots, length, _ = out.shape
        if not self.pairwise or slots != 1 or length % 2:
            return super().__call__(rows, out, scratch)
        before, middle, after = rows[0, 0:-1:2], rows[0, 1::2], rows[0, 2::2]
        even, odd = out[0, 0::2], out[0, 1::2]
        odd.copy_(self.both.product(middle, even, self.bias))
        change = scratch.take("change", *middle.shape)
        self.taps[0].add_product(torch.sub(before, middle, out=change), even)
        self.taps[1].add_product(torch.sub(after, middle, out=change), odd)
        return out


def strided_taps(weight: Tensor, stride: int) -> Tensor:
    """Taps of a convolution [C_out, C_in, k] whose rows are `stride` samples; the kernel is padded to whole rows.

    The last sample of the last row is the newest that an output may see, so padding goes in front.
    """
    out_width, in_width, kernel = weight.shape
    rows = math.ceil(kernel / stride)
    padded = torch.nn.functional.pad(weight, (rows * stride - kernel, 0))
    return padded.view(out_width, in_width, rows, stride).permute(2, 3, 1, 0).reshape(rows, stride * in_width, -1)


def folded_taps(weight: Tensor, fold: int) -> Tensor:
    """Taps of a stride-1 convolution [C_out, C_in, k] on rows of `fold` samples, in and out: a banded matrix.

    Worth it where C_in is so small that single samples make poor products (the first convolution has C_in = 1).
    """
    out_width, in_width, kernel = weight.shape
    rows = 1 + math.ceil((kernel - 1) / fold)
    taps = weight.new_zeros(rows * fold, in_width, fold, out_width)
    for place in range(fold):  # of the output within its row
        newest = (rows - 1) * fold + place
        taps[newest - kernel + 1 : newest + 1, :, place] = weight.permute(2, 1, 0)
    return taps.view(rows, fold * in_width, fold * out_width)


def transposed_taps(weight: Tensor, stride: int) -> Tensor:
    """Taps of a transposed convolution [C_in, C_out, 2 * stride] that writes rows of `stride` samples."""
    in_width, out_width, kernel = weight.shape
    assert kernel == 2 * stride
    return weight.view(in_width, out_width, 2, stride).permute(2, 0, 3, 1).flip(0).reshape(2, in_width, -1)
