"""ELU at the speed of the machine. PyTorch's own takes as long as a quarter of the encoder's products on a CPU."""

import torch
from torch import Tensor

from mimi.state import Workspace

LOG2_E = 1.4426950408889634


def elu_into(x: Tensor, out: Tensor, scratch: Workspace) -> None:
    """out = ELU(x); out may be x.

    In float32 on a CPU, from 2^(x log2 e), which is vectorized where expm1 isn't: max(x, min(e^x, 1) - 1). Its error is
    half a unit in the last place of 1, as a product of unit activations has anyway.
    """
    if x.device.type != "cpu" or x.dtype != torch.float32:
        torch.ops.aten.elu.out(x, 1.0, 1.0, 1.0, out=out)
        return
    power = scratch.take("power", *x.shape)
    torch.mul(x, LOG2_E, out=power)
    power.exp2_().clamp_max_(1).sub_(1)
    torch.maximum(x, power, out=out)
