"""How weights begin: a few initialisations by name, and what each kind of layer gets."""

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
    """Normal numbers whose variance keeps the scale of the inputs."""
    return nn.init.normal_(weight, std=gain / math.sqrt(weight[0].numel()))


def max_0_01_(weight: Tensor, gain: float = 1.0) -> Tensor:
    """Normal numbers, the largest of absolute value 0.01 whatever the gain."""
    return scale_to_(nn.init.normal_(weight), 0.01)


INITIALISATIONS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "orthogonal": orthogonal_,
    "xavier": xavier_,
    "normal": normal_,
    "max_0_01": max_0_01_,
}

GAINS = {"linear": 1.0, "relu": math.sqrt(2), "gelu": math.sqrt(2), "tanh": math.sqrt(2)}  # by what follows the layer


def initialise(layer: Layer, nonlinearity: str = "linear", initialisation: str = "orthogonal") -> Layer:
    """The same Linear or convolution with fresh weights, scaled for the nonlinearity that follows it, and biases 0."""
    INITIALISATIONS[initialisation](layer.get_parameter("weight"), GAINS[nonlinearity])
    for name, parameter in layer.named_parameters(recurse=False):
        if name == "bias":
            nn.init.zeros_(parameter)
    return layer


def init_recurrent(core: Layer, bias: float = 1.0) -> Layer:
    """Orthogonal weights; biases 1, so that the forget gates of an LSTM begin open."""
    for name, parameter in core.named_parameters():
        if name.rpartition(".")[2].startswith("weight"):
            orthogonal_(parameter)
        else:
            nn.init.constant_(parameter, bias)
    return core


@torch.no_grad()
def scale_to_(weight: Tensor, largest: float) -> Tensor:
    """Scaled in place, so that the largest absolute value is this one."""
    return weight.mul_(largest / weight.abs().max())
