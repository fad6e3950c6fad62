"""What the bytes of a token observation mean: where each token lies, of which feature it speaks, and how much."""

# N rows, M tokens, K features of the environment, H x W cells of the window

from typing import NamedTuple

import torch
from torch import Tensor, nn

from engram.env.spec import EMPTY_LOCATION, GLOBAL_LOCATION, EnvSpec, Feature


class Tokens(NamedTuple):
    """Tokens in numbers that can index: where `real` is false, cell and feature are 0 and mean nothing."""

    cells: Tensor  # [N, M] long: row * W + column
    features: Tensor  # [N, M] long: the feature's place in the spec, not its id
    values: Tensor  # [N, M] float
    real: Tensor  # [N, M] bool: false for padding, unknown features and places outside the window


class TokenDecoder(nn.Module):
    """Bytes [N, M, 3] to `Tokens`, the values divided by each feature's normalisation unless told otherwise.

    A global token speaks of the agent itself, so it lies where the agent is: on the cell in the centre.
    """

    cell_of_location: Tensor
    place_of_feature: Tensor
    normalizations: Tensor

    def __init__(self, spec: EnvSpec, normalise: bool = True) -> None:
        super().__init__()
        self.normalise = normalise
        # Derived from the spec, so no part of what training learns.
        self.register_buffer("cell_of_location", cell_table(spec.window), persistent=False)
        self.register_buffer("place_of_feature", feature_table(spec.features), persistent=False)
        self.register_buffer("normalizations", normalization_table(spec.features), persistent=False)

    @property
    def tables(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.cell_of_location, self.place_of_feature, self.normalizations

    def forward(self, tokens_NM3: Tensor) -> Tokens:
        return decode(tokens_NM3, *self.tables, self.normalise)


def decode(
    tokens_NM3: Tensor,
    cell_of_location: Tensor,
    place_of_feature: Tensor,
    normalizations: Tensor,
    normalise: bool = True,
) -> Tokens:
    location, feature, value = tokens_NM3.long().unbind(-1)
    cells, features = cell_of_location[location], place_of_feature[feature]
    real = (cells >= 0) & (features >= 0)
    cells, features = cells.clamp(min=0), features.clamp(min=0)
    values = value.to(normalizations.dtype)
    if normalise:
        values = values / normalizations[features]
    return Tokens(cells, features, values, real)


def is_last(places: Tensor, size: int) -> Tensor:
    """Whether no later element has the same place; a maximum does not depend on the order it is taken in."""
    order = torch.arange(1, places.numel() + 1, dtype=torch.int32, device=places.device)
    last = torch.zeros(size, dtype=torch.int32, device=places.device).scatter_reduce_(0, places, order, "amax")
    return last[places] == order


class StripPadding(nn.Module):
    """Bytes [N, M, 3] without the places that are padding in every row.

    It changes no result, since padding is masked; it saves work. How much there is to cut is known only on the host,
    so this is done where that is free, and compiled graphs and accelerators keep their fixed shapes. What remains is a
    multiple of 16: sums over vector lanes then run in the same order however much was cut.
    """

    def forward(self, tokens_NM3: Tensor) -> Tensor:
        if tokens_NM3.device.type != "cpu" or torch.compiler.is_compiling():
            return tokens_NM3
        used = (tokens_NM3[..., 0] != EMPTY_LOCATION).any(dim=0).nonzero()
        count = int(used[-1]) + 1 if len(used) else 1
        return tokens_NM3[:, : -(-count // 16) * 16]


def cell_table(window: tuple[int, int]) -> Tensor:
    """[256]: the cell of each location byte (row in the high nibble, column in the low one), -1 where there is none."""
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
    """[256]: the place in the spec of each feature id, -1 where the spec has none."""
    places = torch.full((256,), -1)
    for place, feature in enumerate(features):
        places[feature.id] = place
    return places


def normalization_table(features: tuple[Feature, ...]) -> Tensor:
    """[K]: what the values of each feature are divided by."""
    for feature in features:
        if not feature.normalization > 0:
            raise ValueError(
                f"feature '{feature.name}' (id {feature.id}) has normalization {feature.normalization}: values are "
                "divided by it, so it must be above 0; the largest value the feature can take is a good choice"
            )
    return torch.tensor([feature.normalization for feature in features])
