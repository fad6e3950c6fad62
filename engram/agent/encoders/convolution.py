"""Convolutions sized to their input."""

# N rows, C channels, H x W cells

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional


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
