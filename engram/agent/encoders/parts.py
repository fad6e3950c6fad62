"""Encoders of observations that are not tokens: vectors, images, symbols, and several parts together."""

# N rows, R size of the vector that a reader makes of one, H x W cells, C channels

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from engram.agent.layers import fit_convolution, initialise
from engram.agent.normalization import ObservationNormalizer
from engram.agent.observations import Observations, torch_dtype
from engram.env.parts import Part
from engram.env.spec import EnvSpec

IMAGE_CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, kernel, stride
GRID_CONVOLUTIONS = ((32, 3, 1), (64, 3, 2), (64, 3, 2))
FLAT_SYMBOLS = 8192  # one-hot entries; convolutions read larger grids of symbols. 7 x 7 x 3 of 16 values has 2352
MIN_VARIANCE = 0.01  # of a one-hot: the rarest symbols are about 10 standard deviations away
CELL_SIZE = 32  # features of a cell of a larger grid
IMAGE_FEATURES = 128  # of an image or a larger grid that is one of several parts


class ReadingEncoder(nn.Module):
    """Observations as one vector, which two linear layers turn into features [N, output_size], ReLU after each."""

    def __init__(self, reader: nn.Module, read_size: int, output_size: int, hidden_size: int) -> None:
        super().__init__()
        self.reader, self.read_size = reader, read_size
        self.linear1 = initialise(nn.Linear(read_size, hidden_size), "relu")
        self.linear2 = initialise(nn.Linear(hidden_size, output_size), "relu")

    def read(self, observations: Observations) -> Tensor:
        """[N, read_size]."""
        return self.reader(observations).to(self.linear1.weight.dtype)

    def encode(self, read_NR: Tensor) -> Tensor:
        return self.linear2(self.linear1(read_NR).relu_()).relu_()

    def forward(self, observations: Observations) -> Tensor:
        return self.encode(self.read(observations))


class VectorEncoder(ReadingEncoder):
    """Vectors [N, size], normalised, to features."""

    def __init__(self, size: int, output_size: int = 128, hidden_size: int = 128) -> None:
        super().__init__(ObservationNormalizer(size), size, output_size, hidden_size)

    def read(self, observations: Observations) -> Tensor:
        return self.reader(observations.to(self.linear1.weight.dtype))


class ImageEncoder(nn.Module):
    """An image [N, H, W, C] to features [N, output_size]: three convolutions and a linear layer, ReLU after each.

    Bytes are divided by 255, other dtypes are not scaled. In small images kernels and strides shrink until each
    convolution leaves 3 cells a side (`fit_convolution`).
    """

    def __init__(self, shape: tuple[int, int, int], output_size: int = 128) -> None:
        super().__init__()
        self.convolutions, features = _convolutions(shape, IMAGE_CONVOLUTIONS)
        self.linear = initialise(nn.Linear(features, output_size), "relu")

    def forward(self, images_NHWC: Tensor) -> Tensor:
        x = images_NHWC.to(self.linear.weight.dtype)
        if images_NHWC.dtype == torch.uint8:
            x = x / 255
        x = self.convolutions(x.permute(0, 3, 1, 2))
        return self.linear(x.flatten(1)).relu()


class OneHot(nn.Module):
    """Symbols [N, *shape] to one-hots [N, cells * entries], or with `per_cell` [N * cells, entries].

    A value out of range sets no entry.
    """

    channel: Tensor
    symbol: Tensor

    def __init__(self, part: Part, per_cell: bool = False) -> None:
        super().__init__()
        self.scalar, self.per_cell = not part.shape, per_cell
        self.entries = sum(part.symbols)
        self.size = self.entries * (1 if per_cell else math.prod(part.shape[:-1]))
        channels = [channel for channel, number in enumerate(part.symbols) for _ in range(number)]
        symbols = [symbol for number in part.symbols for symbol in range(number)]
        self.register_buffer("channel", torch.tensor(channels), persistent=False)
        self.register_buffer("symbol", torch.tensor(symbols, dtype=torch_dtype(part.dtype)), persistent=False)

    def forward(self, part_N: Tensor) -> Tensor:
        symbols = part_N.unsqueeze(-1) if self.scalar else part_N
        one_hot = symbols.index_select(-1, self.channel) == self.symbol
        return one_hot.flatten(0, -2) if self.per_cell else one_hot.flatten(1)


class NormalizedOneHot(ObservationNormalizer):
    """One-hots, normalised.

    Rare symbols stand out: one object among many cells of wall would otherwise be a small part of the input. Before any
    update one-hots are 0 and 1.
    """

    def __init__(self, part: Part, per_cell: bool = False) -> None:
        one_hot = OneHot(part, per_cell)
        super().__init__(one_hot.size, part.name)
        self.one_hot, self.size = one_hot, one_hot.size

    def encode(self, part_N: Tensor) -> Tensor:
        return self.one_hot(part_N)

    def forward(self, symbols: Tensor) -> Tensor:
        scale = self.variance.clamp(min=MIN_VARIANCE).rsqrt()
        return torch.where(self.encode(symbols), (1 - self.mean) * scale, -self.mean * scale)


class SymbolGridEncoder(nn.Module):
    """A large grid of symbols [N, H, W, C] to features: a linear layer per cell, then convolutions, ReLU after each."""

    def __init__(self, part: Part, output_size: int = 128) -> None:
        super().__init__()
        self.one_hot = NormalizedOneHot(part, per_cell=True)
        self.cell = initialise(nn.Linear(self.one_hot.size, CELL_SIZE), "relu")
        self.size = height, width = part.shape[:2]
        self.convolutions, features = _convolutions((height, width, CELL_SIZE), GRID_CONVOLUTIONS)
        self.linear = initialise(nn.Linear(features, output_size), "relu")

    def forward(self, symbols_NHWC: Tensor) -> Tensor:
        cells = self.cell(self.one_hot(symbols_NHWC).to(self.cell.weight.dtype)).relu()
        cells_NHWC = cells.view(-1, *self.size, CELL_SIZE)
        return self.linear(self.convolutions(cells_NHWC.permute(0, 3, 1, 2)).flatten(1)).relu()


class PartsReader(nn.Module):
    """Observations in parts as one vector [N, size].

    Symbols become one-hots, vectors are normalised, images and large grids of symbols are encoded by convolutions.
    """

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.names = [part.name for part in spec.all_parts]
        self.readers = nn.ModuleList(map(_make_reader, spec.all_parts))
        self.size = sum(map(read_size, spec.all_parts))

    def forward(self, observations: Observations) -> Tensor:
        features = []
        for name, reader in zip(self.names, self.readers, strict=True):
            part = observations if isinstance(observations, Tensor) else observations[name]
            value = part.flatten(1).to(reader.mean.dtype) if type(reader) is ObservationNormalizer else part
            features.append(reader(value).flatten(1))
        return features[0] if len(features) == 1 else torch.cat(features, 1)


class PartsEncoder(ReadingEncoder):
    """Observations in parts to features."""

    def __init__(self, spec: EnvSpec, output_size: int = 128, hidden_size: int = 128) -> None:
        reader = PartsReader(spec)
        super().__init__(reader, reader.size, output_size, hidden_size)


def _convolutions(shape: tuple[int, int, int], layers: Sequence[tuple[int, int, int]]) -> tuple[nn.Sequential, int]:
    """Convolutions for an input [H, W, C], ReLU after each, and the number of features they give."""
    height, width, inputs = shape
    size, modules = (height, width), list[nn.Module]()
    for channels, kernel, stride in layers:
        sizes = fit_convolution(size, kernel, stride, leave=3)
        modules += [initialise(nn.Conv2d(inputs, channels, sizes.kernel, sizes.stride), "relu"), nn.ReLU()]
        size, inputs = sizes.output, channels
    return nn.Sequential(*modules), inputs * math.prod(size)


def read_size(part: Part) -> int:
    """The number of features that a part becomes."""
    if part.kind == "image" or _is_large_grid(part):
        return IMAGE_FEATURES
    return _one_hot_size(part) if part.kind == "symbols" else math.prod(part.shape)


def _one_hot_size(part: Part) -> int:
    return math.prod(part.shape[:-1]) * sum(part.symbols)


def _is_large_grid(part: Part) -> bool:
    return part.kind == "symbols" and len(part.shape) == 3 and _one_hot_size(part) > FLAT_SYMBOLS


def _make_reader(part: Part) -> nn.Module:
    """The module that turns a part into `read_size` features."""
    if part.kind == "image":
        height, width, channels = part.shape
        return ImageEncoder((height, width, channels), IMAGE_FEATURES)
    if part.kind == "vector":
        return ObservationNormalizer(math.prod(part.shape), part.name)
    return SymbolGridEncoder(part, IMAGE_FEATURES) if _is_large_grid(part) else NormalizedOneHot(part)
