"""tanh by the kernels: float32 on the CPU."""

import torch
from torch import Tensor

from engram.agent.native.library import loaded
from engram.agent.native.threads import threads_for

NUMBERS_PER_THREAD = 16384  # fewer are not worth waking one for


def forward(x: Tensor, out: Tensor | None = None) -> Tensor:
    """`out`, if given, is contiguous; it may be x itself."""
    x = x.contiguous()
    y = torch.empty_like(x) if out is None else out
    _run("engram_tanh", x, y)
    return y


def backward(y: Tensor, d_y: Tensor, out: Tensor | None = None) -> Tensor:
    """The gradient of x from that of y = tanh(x). `out` may be one of them."""
    y, d_y = y.contiguous(), d_y.contiguous()
    d_x = torch.empty_like(y) if out is None else out
    _run("engram_tanh_backward", y, d_y, d_x)
    return d_x


def _run(name: str, *arrays: Tensor) -> None:
    count = arrays[0].numel()
    getattr(loaded(), name)(*(array.data_ptr() for array in arrays), count, threads_for(count, NUMBERS_PER_THREAD))
