"""Layers of encoders, heads and components: two fused linear layers, merges, convolutions, and initialisations."""

# N rows, I inputs, K hidden units, O outputs, C channels, H x W cells

import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

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


class JointLinear(nn.Linear):
    """A linear layer of several inputs."""

    def forward(self, *inputs: Tensor) -> Tensor:
        return super().forward(torch.cat(inputs, dim=-1))


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


Layer = TypeVar("Layer", bound=nn.Module)


def normal_(weight: Tensor, gain: float = 1.0) -> Tensor:
    """Normal, with a variance that preserves the scale of the inputs."""
    return nn.init.normal_(weight, std=gain / math.sqrt(weight[0].numel()))


def max_0_01_(weight: Tensor, gain: float = 1.0) -> Tensor:
    """Normal, scaled to a largest absolute value of 0.01, whatever the gain."""
    return scale_to_(nn.init.normal_(weight), 0.01)


INITIALISATIONS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "orthogonal": nn.init.orthogonal_,
    "xavier": nn.init.xavier_uniform_,
    "normal": normal_,
    "max_0_01": max_0_01_,
}

# By the nonlinearity after the layer.
GAINS = {"linear": 1.0, "relu": math.sqrt(2), "gelu": math.sqrt(2), "tanh": math.sqrt(2)}


def initialise(layer: Layer, nonlinearity: str = "linear", initialisation: str = "orthogonal") -> Layer:
    """Initialise a Linear or convolution in place, with the gain of the nonlinearity after it, and biases 0."""
    INITIALISATIONS[initialisation](layer.get_parameter("weight"), GAINS[nonlinearity])
    for name, parameter in layer.named_parameters(recurse=False):
        if name == "bias":
            nn.init.zeros_(parameter)
    return layer


@torch.no_grad()
def scale_to_(weight: Tensor, largest: float) -> Tensor:
    """Scale in place to this largest absolute value."""
    return weight.mul_(largest / weight.abs().max())
