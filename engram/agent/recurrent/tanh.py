"""tanh into an output buffer, without a gradient."""

import torch
from torch import Tensor


def tanh_into(x: Tensor, out: Tensor) -> Tensor:
    """tanh(x) in `out`. On CPUs by the sigmoid, which PyTorch computes faster."""
    if x.device.type != "cpu":
        return torch.tanh(x, out=out)
    return torch.add(x, x, out=out).sigmoid_().mul_(2).sub_(1)
