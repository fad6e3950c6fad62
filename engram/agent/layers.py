"""Linear layers with what follows them, as one operator on CPUs: a layer and ReLU, or two with tanh or ReLU between.

By native kernels what lies between stays in cache, and a row has the same bits in acting and learning.
"""

# N rows, I inputs, K hidden, O outputs

import torch
from torch import Tensor, nn

from engram.agent.recurrent.operator import Operator
from engram.agent.recurrent.tanh import tanh
from engram.native import layers as native

ACTIVATIONS = {"tanh": tanh, "relu": torch.relu}


def linear_relu(x_NI: Tensor, layer: nn.Linear) -> Tensor:
    """relu(layer(x)) [N, K]."""
    return relu_of(x_NI, layer.weight, layer.bias)


def relu_of(x_NI: Tensor, w_KI: Tensor, b_K: Tensor | None) -> Tensor:
    """relu(x · w + b) [N, K]."""
    if b_K is None or not _suits(x_NI) or not native.suits(len(w_KI)):
        return nn.functional.linear(x_NI, w_KI, b_K).relu_()
    return linear_relu_op(x_NI, w_KI, b_K) if _learning() else native.one_forward(x_NI, w_KI, b_K)


def two_layers(x_NI: Tensor, hidden: nn.Linear, output: nn.Linear, activation: str) -> Tensor:
    """output(activation(hidden(x))) [N, O]."""
    if hidden.bias is None or not _suits(x_NI) or not native.suits(*output.weight.shape[::-1]):
        return output(ACTIVATIONS[activation](hidden(x_NI)))
    arguments = (x_NI, hidden.weight, hidden.bias, output.weight, output.bias, activation)
    return two_layers_op(*arguments)[0] if _learning() else native.two_forward(*arguments, keep=False)[0]


def _suits(x: Tensor) -> bool:
    return (x.device.type, x.dtype, x.dim()) == ("cpu", torch.float32, 2) and not torch.is_autocast_enabled("cpu")


def _learning() -> bool:
    return torch.is_grad_enabled() or torch.compiler.is_compiling()


@Operator
def linear_relu_op(x: Tensor, w_KI: Tensor, b_K: Tensor) -> Tensor:
    return native.one_forward(x, w_KI, b_K)


@linear_relu_op.register_fake
def _(x, w_KI, b_K):
    return x.new_empty(len(x), len(w_KI))


@Operator
def linear_relu_backward(d_NK: Tensor, x: Tensor, w_KI: Tensor, y_NK: Tensor, of_x: bool) -> list[Tensor]:
    """Gradients of the weights and biases, and of x if it is wanted."""
    return native.one_backward(d_NK, x, w_KI, y_NK, of_x=of_x)


@linear_relu_backward.register_fake
def _(d_NK, x, w_KI, y_NK, of_x):
    return [x.new_empty(shape) for shape in (w_KI.shape, w_KI.shape[:1], x.shape)[: 3 if of_x else 2]]


def _remember_one(ctx, inputs, output) -> None:
    x, w_KI, _ = inputs
    ctx.save_for_backward(x, w_KI, output)


def _backward_of_one(ctx, d_NK):
    d_w_KI, d_b_K, *d_x = linear_relu_backward(d_NK, *ctx.saved_tensors, ctx.needs_input_grad[0])
    return d_x[0] if d_x else None, d_w_KI, d_b_K


linear_relu_op.register_autograd(_backward_of_one, _remember_one)


@Operator
def two_layers_op(
    x: Tensor, w_KI: Tensor, b_K: Tensor, w_OK: Tensor, b_O: Tensor | None, activation: str
) -> tuple[Tensor, Tensor]:
    """The outputs, and what lies between."""
    return native.two_forward(x, w_KI, b_K, w_OK, b_O, activation, keep=True)


@two_layers_op.register_fake
def _(x, w_KI, b_K, w_OK, b_O, activation):
    return x.new_empty(len(x), len(w_OK)), x.new_empty(len(x), len(w_KI))


@Operator
def two_layers_backward(
    d_NO: Tensor, x: Tensor, w_KI: Tensor, w_OK: Tensor, between: Tensor, activation: str
) -> list[Tensor]:
    """Gradients of x, and of the weights and biases of both layers."""
    return [*native.two_backward(d_NO, x, w_KI, w_OK, between, activation), d_NO.sum(0)]


@two_layers_backward.register_fake
def _(d_NO, x, w_KI, w_OK, between, activation):
    shapes = [x.shape, w_KI.shape, w_KI.shape[:1], w_OK.shape, w_OK.shape[:1]]
    return [x.new_empty(shape) for shape in shapes]


def _remember_two(ctx, inputs, output) -> None:
    x, w_KI, _, w_OK, b_O, ctx.activation = inputs
    ctx.has_bias = b_O is not None
    ctx.set_materialize_grads(False)  # nobody takes what lies between
    ctx.save_for_backward(x, w_KI, w_OK, output[1])


def _backward_of_two(ctx, d_outputs, _):
    if d_outputs is None:
        return (None,) * 6
    *gradients, d_b_O = two_layers_backward(d_outputs, *ctx.saved_tensors, ctx.activation)
    return *gradients, d_b_O if ctx.has_bias else None, None


two_layers_op.register_autograd(_backward_of_two, _remember_two)


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
