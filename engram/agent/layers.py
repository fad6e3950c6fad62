"""Two linear layers with an activation between, fused on CPUs; and modules that merge several inputs."""

# N rows, I inputs, K hidden units, O outputs

import torch
from torch import Tensor, nn

from engram.agent.operator import Operator
from engram.native import layers as native

ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu}


def two_layers(x_NI: Tensor, hidden: nn.Linear, output: nn.Linear, activation: str) -> Tensor:
    """output(activation(hidden(x))) [N, O]. A native kernel computes the same on CPUs."""
    if not _kernel_usable(x_NI, hidden, output):
        return output(ACTIVATIONS[activation](hidden(x_NI)))
    arguments = (x_NI, hidden.weight, hidden.bias, output.weight, output.bias, activation)
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return two_layers_op(*arguments)[0]
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


# The kernel as a custom operator, with a gradient and a fake implementation for the compiler.


@Operator
def two_layers_op(
    x: Tensor, w_KI: Tensor, b_K: Tensor, w_OK: Tensor, b_O: Tensor | None, activation: str
) -> tuple[Tensor, Tensor]:
    """The outputs, and the hidden activations for the backward pass."""
    return native.forward(x, w_KI, b_K, w_OK, b_O, activation, keep_hidden=True)


@two_layers_op.register_fake
def _(x, w_KI, b_K, w_OK, b_O, activation):
    return x.new_empty(len(x), len(w_OK)), x.new_empty(len(x), len(w_KI))


@Operator
def two_layers_backward(
    d_NO: Tensor, x: Tensor, w_KI: Tensor, w_OK: Tensor, hidden: Tensor, activation: str
) -> list[Tensor]:
    """Gradients of x, and of the weights and biases of both layers."""
    return [*native.backward(d_NO, x, w_KI, w_OK, hidden, activation), d_NO.sum(0)]


@two_layers_backward.register_fake
def _(d_NO, x, w_KI, w_OK, hidden, activation):
    shapes = [x.shape, w_KI.shape, w_KI.shape[:1], w_OK.shape, w_OK.shape[:1]]
    return [x.new_empty(shape) for shape in shapes]


def _save(ctx, inputs, output) -> None:
    x, w_KI, _, w_OK, b_O, ctx.activation = inputs
    ctx.has_bias = b_O is not None
    ctx.set_materialize_grads(False)  # the hidden activations have no gradient
    ctx.save_for_backward(x, w_KI, w_OK, output[1])


def _differentiate(ctx, d_outputs, _):
    if d_outputs is None:
        return (None,) * 6
    *gradients, d_b_O = two_layers_backward(d_outputs, *ctx.saved_tensors, ctx.activation)
    return *gradients, d_b_O if ctx.has_bias else None, None


two_layers_op.register_autograd(_differentiate, _save)
