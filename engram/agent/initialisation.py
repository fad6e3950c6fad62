"""Weight initialisations by name, and helpers that apply them to layers."""

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

Layer = TypeVar("Layer", bound=nn.Module)


def orthogonal_(weight: Tensor, gain: float = 1.0) -> Tensor:
    return nn.init.orthogonal_(weight, gain)


def xavier_(weight: Tensor, gain: float = 1.0) -> Tensor:
    return nn.init.xavier_uniform_(weight, gain)


def normal_(weight: Tensor, gain: float = 1.0) -> Tensor:
    """Normal, with a variance that preserves the scale of the inputs."""
    return nn.init.normal_(weight, std=gain / math.sqrt(weight[0].numel()))


def max_0_01_(weight: Tensor, gain: float = 1.0) -> Tensor:
    """Normal, scaled to a largest absolute value of 0.01, whatever the gain."""
    return scale_to_(nn.init.normal_(weight), 0.01)


INITIALISATIONS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "orthogonal": orthogonal_,
    "xavier": xavier_,
    "normal": normal_,
    "max_0_01": max_0_01_,
}

GAINS = {
    "linear": 1.0,
    "relu": math.sqrt(2),
    "gelu": math.sqrt(2),
    "tanh": math.sqrt(2),
}  # by the nonlinearity after the layer


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
