"""Tokens as a box of feature layers over the cells of the window, read by convolutions."""

# N rows, M tokens, K features of the environment, H x W cells of the window

import torch
from torch import Tensor, nn

from engram.agent.encoders.tokens import TokenDecoder, is_last, normalization_table
from engram.agent.layers import Conv2d, conv_shape, initialise
from engram.env.spec import EnvSpec
from engram.native.library import available
from engram.native.operator import is_traced
from engram.native.token_conv import ConvGeometry, token_conv


class TokensToBox(nn.Module):
    """Tokens [N, M, 3] to a box [N, K, H, W]. If several tokens have the same cell and feature, the last one counts."""

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
        index = (row * cells + tokens.cells) * self.layers + tokens.features
        index = torch.where(tokens.valid, index, size)  # one spare element takes the invalid tokens
        box = scatter_last(index.flatten(), tokens.values.flatten(), size + 1)[:-1]
        # Channels last: convolutions are fastest in this layout.
        return box.view(rows, *self.window, self.layers).permute(0, 3, 1, 2)


class BoxNormaliser(nn.Module):
    """Divides each layer of a box [N, K, H, W] by the normalisation of its feature."""

    normalizations: Tensor

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.register_buffer("normalizations", normalization_table(spec.features), persistent=False)

    def forward(self, box_NKHW: Tensor) -> Tensor:
        return box_NKHW / self.normalizations[:, None, None]


class TokenConv2d(nn.Module):
    """A convolution of the box of tokens [N, M, 3]. On CPUs a kernel computes it without building the box."""

    def __init__(self, spec: EnvSpec, channels: int, kernel: tuple[int, int], stride: tuple[int, int]) -> None:
        super().__init__()
        self.box = TokensToBox(spec)
        self.conv = initialise(nn.Conv2d(len(spec.features), channels, kernel, stride), "relu")
        self.geometry = ConvGeometry(spec.window, kernel, stride)

    def forward(self, tokens_NM3: Tensor) -> Tensor:
        weight, bias = self.conv.weight, self.conv.bias
        assert bias is not None
        on_cpu = (tokens_NM3.device.type, tokens_NM3.dtype, weight.dtype) == ("cpu", torch.uint8, torch.float32)
        if on_cpu and available():
            return token_conv(tokens_NM3, self.box.decode.tables, weight, bias, self.geometry)
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
        x = self.conv2(x).relu_().flatten(1)
        return self.linear2(self.linear1(x).relu_()).relu_()


def scatter_last(index: Tensor, values: Tensor, size: int) -> Tensor:
    """Zeros [size] with each value at its index, the last value where several share one.

    The last element is spare: its value is undefined.
    """
    if index.device.type != "cpu" or is_traced():
        index = torch.where(is_last(index, size), index, size - 1)
    # In eager mode the CPU writes in order. Elsewhere the order is undefined, so only the last of each index writes.
    return torch.zeros(size, dtype=values.dtype, device=values.device).scatter_(0, index, values)
