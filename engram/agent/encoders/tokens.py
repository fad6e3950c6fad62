"""Decodes token observations: the cell, feature and value of each token."""

# N rows, M tokens, K features of the environment, H x W cells of the window

from typing import NamedTuple

import torch
from torch import Tensor, nn

from engram.env.spec import EMPTY_LOCATION, GLOBAL_LOCATION, EnvSpec, Feature
from engram.native.operator import is_traced


class Tokens(NamedTuple):
    """Decoded tokens. Where `valid` is false, cell and feature are 0 and meaningless."""

    cells: Tensor  # [N, M] long: row * W + column
    features: Tensor  # [N, M] long: the feature's index in the spec, not its id
    values: Tensor  # [N, M] float
    valid: Tensor  # [N, M] bool: false for padding, unknown features and locations outside the window


class TokenDecoder(nn.Module):
    """Bytes [N, M, 3] to `Tokens`, with values divided by their feature's normalisation unless `normalise` is false.

    Global tokens describe the agent itself, so they are on the agent's cell: the centre.
    """

    cell_of_location: Tensor
    index_of_feature: Tensor
    normalizations: Tensor

    def __init__(self, spec: EnvSpec, normalise: bool = True) -> None:
        super().__init__()
        self.normalise = normalise
        # Derived from the spec, so not in the state dict.
        self.register_buffer("cell_of_location", cell_table(spec.window), persistent=False)
        self.register_buffer("index_of_feature", feature_table(spec.features), persistent=False)
        self.register_buffer("normalizations", normalization_table(spec.features), persistent=False)

    @property
    def tables(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.cell_of_location, self.index_of_feature, self.normalizations

    def forward(self, tokens_NM3: Tensor) -> Tokens:
        return decode(tokens_NM3, *self.tables, self.normalise)


def decode(
    tokens_NM3: Tensor,
    cell_of_location: Tensor,
    index_of_feature: Tensor,
    normalizations: Tensor,
    normalise: bool = True,
) -> Tokens:
    location, feature, value = tokens_NM3.long().unbind(-1)
    cells, features = cell_of_location[location], index_of_feature[feature]
    valid = (cells >= 0) & (features >= 0)
    cells, features = cells.clamp(min=0), features.clamp(min=0)
    values = value.to(normalizations.dtype)
    if normalise:
        values = values / normalizations[features]
    return Tokens(cells, features, values, valid)


def is_last(index: Tensor, size: int) -> Tensor:
    """Whether no later element has the same index. Deterministic, since a maximum does not depend on the order."""
    order = torch.arange(1, index.numel() + 1, dtype=torch.int32, device=index.device)
    last = torch.zeros(size, dtype=torch.int32, device=index.device).scatter_reduce_(0, index, order, "amax")
    return last[index] == order


class StripPadding(nn.Module):
    """Drops token positions that are padding in every row. Padding is masked anyway, so this only saves work.

    Only in eager mode on CPUs: elsewhere the number of tokens would cost a sync or a dynamic shape. A multiple of 16
    remains, so that sums over vector lanes run in the same order however much is dropped.
    """

    def forward(self, tokens_NM3: Tensor) -> Tensor:
        if tokens_NM3.device.type != "cpu" or is_traced():
            return tokens_NM3
        used = (tokens_NM3[..., 0] != EMPTY_LOCATION).any(dim=0).nonzero()
        count = int(used[-1]) + 1 if len(used) else 1
        return tokens_NM3[:, : -(-count // 16) * 16]


def cell_table(window: tuple[int, int]) -> Tensor:
    """[256]: the cell of each location byte (row in the high nibble, column in the low one), or -1."""
    height, width = window
    location = torch.arange(256)
    row, column = location >> 4, location & 15
    cells = torch.where((row < height) & (column < width), row * width + column, -1)
    cells[GLOBAL_LOCATION] = centre_cell(window)
    cells[EMPTY_LOCATION] = -1
    return cells


def centre_cell(window: tuple[int, int]) -> int:
    """The cell of the agent itself."""
    height, width = window
    return (height // 2) * width + width // 2


def feature_table(features: tuple[Feature, ...]) -> Tensor:
    """[256]: the index in the spec of each feature id, or -1."""
    table = torch.full((256,), -1)
    for index, feature in enumerate(features):
        table[feature.id] = index
    return table


def normalization_table(features: tuple[Feature, ...]) -> Tensor:
    """[K]: the normalisation of each feature."""
    for feature in features:
        if not feature.normalization > 0:
            raise ValueError(
                f"feature '{feature.name}' (id {feature.id}) has normalization {feature.normalization}: it must be "
                "above 0, since values are divided by it; use the largest value of the feature"
            )
    return torch.tensor([feature.normalization for feature in features])
