"""Tokens as a box of feature layers, one cell of the window each, read by convolutions."""

# N rows, M tokens, K features of the environment, H x W cells of the window

from typing import NamedTuple

import torch
from torch import Tensor, nn

from engram.agent.encoders.convolution import Conv2d
from engram.agent.encoders.token_conv import convolve
from engram.agent.encoders.tokens import TokenDecoder, is_last, normalization_table
from engram.agent.initialisation import initialise
from engram.agent.layers import linear_relu
from engram.env.spec import EnvSpec
from engram.native.library import available
from engram.native.token_conv import Geometry


class TokensToBox(nn.Module):
    """Tokens [N, M, 3] to a box [N, K, H, W]. Of several tokens for one cell and feature the last counts."""

    def __init__(self, spec: EnvSpec, normalise: bool = True) -> None:
        super().__init__()
        self.decode = TokenDecoder(spec, normalise)
        self.layers = len(spec.features)
        self.window = spec.window

    def forward(self, tokens_NM3: Tensor) -> Tensor:
        tokens = self.decode(tokens_NM3)
        rows, cells = tokens_NM3.shape[0], self.window[0] * self.window[1]
        size = rows * cells * self.layers
        row = torch.arange(rows, device=tokens_NM3.device).unsqueeze(1)
        places = (row * cells + tokens.cells) * self.layers + tokens.features
        places = torch.where(tokens.real, places, size)  # one more place, for what is not drawn
        box = scatter_last(places.flatten(), tokens.values.flatten(), size + 1)[:-1]
        # Drawn with the layers innermost, which is the layout convolutions are fastest in.
        return box.view(rows, *self.window, self.layers).permute(0, 3, 1, 2)


class ObservationNormaliser(nn.Module):
    """A box [N, K, H, W] of raw values divided by the normalisation of each layer."""

    normalizations: Tensor

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.register_buffer("normalizations", normalization_table(spec.features), persistent=False)

    def forward(self, box_NKHW: Tensor) -> Tensor:
        return box_NKHW / self.normalizations[:, None, None]


class TokenConv2d(nn.Module):
    """A convolution that reads tokens [N, M, 3]: as if their box were drawn first, which on CPUs it need not be."""

    def __init__(self, spec: EnvSpec, channels: int, kernel: tuple[int, int], stride: tuple[int, int]) -> None:
        super().__init__()
        self.box = TokensToBox(spec)
        self.conv = initialise(nn.Conv2d(len(spec.features), channels, kernel, stride), "relu")
        self.sizes = Geometry(spec.window, kernel, stride)

    def forward(self, tokens_NM3: Tensor) -> Tensor:
        weight, bias, decode = self.conv.weight, self.conv.bias, self.box.decode
        assert bias is not None
        on_cpu = (tokens_NM3.device.type, tokens_NM3.dtype, weight.dtype) == ("cpu", torch.uint8, torch.float32)
        if on_cpu and (available() or not torch.compiler.is_compiling()):
            return convolve(tokens_NM3, decode.tables, weight, bias, self.sizes)
        return self.conv(self.box(tokens_NM3))


class BoxEncoder(nn.Module):
    """Tokens [N, M, 3] to features [N, output_size]: two convolutions and two linear layers, ReLU after each."""

    def __init__(self, spec: EnvSpec, output_size: int = 128, channels: int = 64, hidden_size: int = 128) -> None:
        super().__init__()
        first, second = conv_shape(spec.window)
        self.conv1 = TokenConv2d(spec, channels, first.kernel, first.stride)
        self.conv2 = initialise(Conv2d(channels, channels, second.kernel, second.stride), "relu")
        self.linear1 = initialise(nn.Linear(channels * second.output[0] * second.output[1], hidden_size), "relu")
        self.linear2 = initialise(nn.Linear(hidden_size, output_size), "relu")

    def forward(self, tokens_NM3: Tensor) -> Tensor:
        x = self.conv1(tokens_NM3).relu()
        x = self.conv2.with_relu(x).flatten(1)
        return linear_relu(linear_relu(x, self.linear1), self.linear2)


class Convolution(NamedTuple):
    """Sizes of a convolution, (height, width)."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    output: tuple[int, int]


def fit_convolution(size: tuple[int, int], kernel: int, stride: int, leave: int) -> Convolution:
    """The one rule for small inputs: on each side, kernel and stride shrink by one each, neither below 1, until the
    output has at least `leave` cells."""

    def fit(cells: int, kernel: int, stride: int) -> tuple[int, int, int]:
        output = max(0, (cells - kernel) // stride + 1)
        if output >= leave or (kernel == 1 and stride == 1):
            return kernel, stride, output
        return fit(cells, max(1, kernel - 1), max(1, stride - 1))

    sides = [fit(cells, kernel, stride) for cells in size]
    return Convolution(*((high, wide) for high, wide in zip(*sides, strict=True)))


def conv_shape(window: tuple[int, int]) -> tuple[Convolution, Convolution]:
    """The two convolutions of a window: kernels 5 and 3, strides 3 and 1 from 11 cells a side on. For smaller ones the
    first shrinks until the second has its 3 cells: 9 -> kernel 4 stride 2, 7 and 5 -> 3 and 1, 3 -> 1 and 1."""
    first = fit_convolution(window, kernel=5, stride=3, leave=3)
    return first, fit_convolution(first.output, kernel=3, stride=1, leave=1)


def scatter_last(places: Tensor, values: Tensor, size: int) -> Tensor:
    """Zeros [size] with each value at its place, the last one where several share a place. The final place is spare:
    what it holds is arbitrary."""
    if places.device.type != "cpu" or torch.compiler.is_compiling():
        places = torch.where(is_last(places, size), places, size - 1)
    # In eager mode the CPU writes one after the other; elsewhere the order is open, so only winners may write.
    return torch.zeros(size, dtype=values.dtype, device=values.device).scatter_(0, places, values)
