"""The encoder of several parts, and of symbols: each part by its kind, joined by two linear layers."""

# N rows, H x W cells, C channels

import math

import torch
from torch import Tensor, nn

from engram.agent.encoders.convolution import fit_convolution
from engram.agent.encoders.vector import ImageEncoder
from engram.agent.initialisation import initialise
from engram.agent.normalization import ObservationNormalizer
from engram.agent.observations import Observations, torch_dtype
from engram.env.parts import Part
from engram.env.spec import EnvSpec

FLAT_SYMBOLS = 8192  # one-hot entries up to which a grid of symbols is read as a whole: 7 x 7 x 3 of 16 values has 2352
CELL_SIZE = 32  # features of a cell of a larger grid
GRID_CONVOLUTIONS = ((32, 3, 1), (64, 3, 2), (64, 3, 2))  # channels, kernel, stride


class OneHot(nn.Module):
    """Symbols [N, *shape] to one-hots [N, *shape but the last, entries]. Values out of range give zeros."""

    channel: Tensor
    symbol: Tensor

    def __init__(self, part: Part) -> None:
        super().__init__()
        self.scalar = not part.shape
        self.size = sum(part.symbols)
        channels = [channel for channel, number in enumerate(part.symbols) for _ in range(number)]
        symbols = [symbol for number in part.symbols for symbol in range(number)]
        self.register_buffer("channel", torch.tensor(channels), persistent=False)
        self.register_buffer("symbol", torch.tensor(symbols, dtype=torch_dtype(part.dtype)), persistent=False)

    def forward(self, symbols: Tensor) -> Tensor:
        symbols = symbols.unsqueeze(-1) if self.scalar else symbols
        return symbols.index_select(-1, self.channel) == self.symbol


class SymbolGridEncoder(nn.Module):
    """A large grid of symbols [N, H, W, C] to features: a linear layer per cell, then convolutions, ReLU after each."""

    def __init__(self, part: Part, output_size: int = 128) -> None:
        super().__init__()
        self.one_hot = OneHot(part)
        self.cell = initialise(nn.Linear(self.one_hot.size, CELL_SIZE), "relu")
        (height, width, _), inputs = part.shape, CELL_SIZE
        size, convolutions = (height, width), []
        for channels, kernel, stride in GRID_CONVOLUTIONS:
            sizes = fit_convolution(size, kernel, stride, leave=3)
            convolutions += [initialise(nn.Conv2d(inputs, channels, sizes.kernel, sizes.stride), "relu"), nn.ReLU()]
            size, inputs = sizes.output, channels
        self.convolutions = nn.Sequential(*convolutions)
        self.linear = initialise(nn.Linear(inputs * math.prod(size), output_size), "relu")

    def forward(self, symbols_NHWC: Tensor) -> Tensor:
        cells = self.cell(self.one_hot(symbols_NHWC).to(self.cell.weight.dtype)).relu()
        return self.linear(self.convolutions(cells.permute(0, 3, 1, 2)).flatten(1)).relu()


class PartsEncoder(nn.Module):
    """Observations in parts to features [N, output_size].

    Symbols become one-hots, vectors are normalised, images and large grids of symbols are encoded by convolutions. Two
    linear layers, ReLU after each, read all of it.
    """

    def __init__(self, spec: EnvSpec, output_size: int = 128, hidden_size: int = 128) -> None:
        super().__init__()
        self.names = [part.name for part in spec.all_parts]
        readers = [_reader(part) for part in spec.all_parts]
        self.readers = nn.ModuleList(reader for reader, _ in readers)
        self.linear1 = initialise(nn.Linear(sum(size for _, size in readers), hidden_size), "relu")
        self.linear2 = initialise(nn.Linear(hidden_size, output_size), "relu")

    def forward(self, observations: Observations) -> Tensor:
        dtype = self.linear1.weight.dtype
        features = []
        for name, reader in zip(self.names, self.readers, strict=True):
            part = observations if isinstance(observations, Tensor) else observations[name]
            value = part.flatten(1).to(dtype) if isinstance(reader, ObservationNormalizer) else part
            features.append(reader(value).flatten(1).to(dtype))
        x = features[0] if len(features) == 1 else torch.cat(features, 1)
        return self.linear2(self.linear1(x).relu()).relu()


def _reader(part: Part) -> tuple[nn.Module, int]:
    """The module that turns a part into features, and their number."""
    if part.kind == "image":
        height, width, channels = part.shape
        return ImageEncoder((height, width, channels)), 128
    if part.kind == "vector":
        size = math.prod(part.shape)
        return ObservationNormalizer(size, part.name), size
    one_hot = OneHot(part)
    size = math.prod(part.shape[:-1]) * one_hot.size
    if len(part.shape) == 3 and size > FLAT_SYMBOLS:
        return SymbolGridEncoder(part), 128
    return one_hot, size
