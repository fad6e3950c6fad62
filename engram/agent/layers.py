"""Two linear layers with an activation between, fused on CPUs; and modules that merge several inputs."""

# N rows, I inputs, K hidden units, O outputs

import torch
from torch import Tensor, nn

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
