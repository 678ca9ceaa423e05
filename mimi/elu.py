"""ELU at the speed of the machine. PyTorch's own takes as long as a quarter of the encoder's products on a CPU."""

import torch
from torch import Tensor

from mimi.state import Workspace

LOWEST = -80.0  # e^x - 1 is -1 in float32 long before; below -87 e^x is denormal or 0, and ten times as slow


def elu_into(x: Tensor, out: Tensor, scratch: Workspace) -> None:
    """out = ELU(x); out may be x.

    In float32 on a CPU, as max(x, e^min(x, 0) - 1), from e^x, which is vectorized where expm1 isn't. Its error is half
    a unit in the last place of 1, as a product of unit activations has anyway.
    """
    if x.device.type != "cpu" or x.dtype != torch.float32:
        torch.ops.aten.elu.out(x, 1.0, 1.0, 1.0, out=out)
        return
    power = scratch.take("power", *x.shape)
    torch.clamp(x, LOWEST, 0.0, out=power)
    power.exp_().sub_(1)
    torch.maximum(x, power, out=out)
