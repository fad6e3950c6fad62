"""Layers of encoders, heads and components: convolutions sized to their input, two fused linear layers, merges."""

# N rows, I inputs, K hidden units, O outputs, C channels, H x W cells

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from engram.native import layers as native

ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu}


def two_layers(x_NI: Tensor, hidden: nn.Linear, output: nn.Linear, activation: str) -> Tensor:
    """output(activation(hidden(x))) [N, O]. A native kernel computes the same on CPUs."""
    if not _kernel_usable(x_NI, hidden, output):
        return output(ACTIVATIONS[activation](hidden(x_NI)))
    arguments = (x_NI, hidden.weight, hidden.bias, output.weight, output.bias, activation)
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return native.two_layers_op(*arguments)[0]
    return native.forward(*arguments, keep_hidden=False)[0]


class Concat(nn.Module):
    """Concatenates its inputs along the first dimension after the batch."""

    def forward(self, *inputs: Tensor) -> Tensor:
        return torch.cat(inputs, dim=1)


class Add(nn.Module):
    def forward(self, *inputs: Tensor) -> Tensor:
        return sum(inputs[1:], inputs[0])


class Mean(nn.Module):
    def forward(self, *inputs: Tensor) -> Tensor:
        return sum(inputs[1:], inputs[0]) / len(inputs)


class Subtract(nn.Module):
    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return first - second


def _kernel_usable(x: Tensor, hidden: nn.Linear, output: nn.Linear) -> bool:
    is_cpu_float = (x.device.type, x.dtype, x.dim()) == ("cpu", torch.float32, 2)
    if not is_cpu_float or torch.is_autocast_enabled("cpu") or hidden.bias is None:
        return False
    return native.supports(*output.weight.shape[::-1])


class Convolution(NamedTuple):
    """Sizes of a convolution, (height, width) each."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    output: tuple[int, int]


def fit_convolution(size: tuple[int, int], kernel: int, stride: int, leave: int) -> Convolution:
    """Shrink a convolution to a small input.

    Height and width separately: kernel and stride shrink by one, neither below 1, until the output has `leave` cells.
    """

    def fit(cells: int, kernel: int, stride: int) -> tuple[int, int, int]:
        output = max(0, (cells - kernel) // stride + 1)
        if output >= leave or (kernel == 1 and stride == 1):
            return kernel, stride, output
        return fit(cells, max(1, kernel - 1), max(1, stride - 1))

    sides = [fit(cells, kernel, stride) for cells in size]
    return Convolution(*((height, width) for height, width in zip(*sides, strict=True)))


def conv_shape(window: tuple[int, int]) -> tuple[Convolution, Convolution]:
    """The two convolutions for a window: kernels 5 and 3, strides 3 and 1 from 11 cells a side.

    In smaller windows the first shrinks until the second has its 3 cells: a side of 9 gives kernel 4, stride 2; 7 and 5
    give 3 and 1; 3 gives 1 and 1.
    """
    first = fit_convolution(window, kernel=5, stride=3, leave=3)
    return first, fit_convolution(first.output, kernel=3, stride=1, leave=1)


class Conv2d(nn.Conv2d):
    """`nn.Conv2d` without padding. If its output is one cell, it is a matrix product, several times faster."""

    def forward(self, box_NCHW: Tensor) -> Tensor:
        if tuple(box_NCHW.shape[-2:]) != self.kernel_size:
            return super().forward(box_NCHW)
        # Channels last, the layout of the previous convolution's output, so that no row is copied.
        rows, weight = (x.permute(0, 2, 3, 1).flatten(1) for x in (box_NCHW, self.weight))
        return functional.linear(rows, weight, self.bias)[..., None, None]
