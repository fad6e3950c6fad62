"""Two linear layers with tanh or ReLU between, one operator on CPUs: what lies between is wide, and stays in cache."""

# N rows, I inputs, K hidden, O outputs

import torch
from torch import Tensor, nn

from engram.agent.native import two_layers as native
from engram.agent.operator import Operator
from engram.agent.tanh import tanh

ACTIVATIONS = {"tanh": tanh, "relu": torch.relu}


def two_layers(x_NI: Tensor, hidden: nn.Linear, output: nn.Linear, activation: str) -> Tensor:
    """output(activation(hidden(x))) [N, O]. By native kernels a row has the same bits in acting and learning."""
    suits = (x_NI.device.type, x_NI.dtype) == ("cpu", torch.float32) and not torch.is_autocast_enabled("cpu")
    if not suits or not native.suits(*output.weight.shape[::-1]):
        return output(ACTIVATIONS[activation](hidden(x_NI)))
    arguments = (x_NI, hidden.weight, hidden.bias, output.weight, output.bias, activation)
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return two_layers_op(*arguments)[0]
    return native.forward(*arguments, keep=False)[0]


@Operator
def two_layers_op(
    x: Tensor, w_KI: Tensor, b_K: Tensor, w_OK: Tensor, b_O: Tensor | None, activation: str
) -> tuple[Tensor, Tensor]:
    """The outputs, and what lies between."""
    return native.forward(x, w_KI, b_K, w_OK, b_O, activation, keep=True)


@two_layers_op.register_fake
def _(x, w_KI, b_K, w_OK, b_O, activation):
    return x.new_empty(len(x), len(w_OK)), x.new_empty(len(x), len(w_KI))


@Operator
def two_layers_backward(
    d_NO: Tensor, x: Tensor, w_KI: Tensor, w_OK: Tensor, between: Tensor, activation: str
) -> list[Tensor]:
    """Gradients of x, and of the weights and biases of both layers."""
    return [*native.backward(d_NO, x, w_KI, w_OK, between, activation), d_NO.sum(0)]


@two_layers_backward.register_fake
def _(d_NO, x, w_KI, w_OK, between, activation):
    shapes = [x.shape, w_KI.shape, w_KI.shape[:1], w_OK.shape, w_OK.shape[:1]]
    return [x.new_empty(shape) for shape in shapes]


def _remember(ctx, inputs, output) -> None:
    x, w_KI, _, w_OK, b_O, ctx.activation = inputs
    ctx.has_bias = b_O is not None
    ctx.set_materialize_grads(False)  # nobody takes what lies between
    ctx.save_for_backward(x, w_KI, w_OK, output[1])


def _backward(ctx, d_outputs, _):
    if d_outputs is None:
        return (None,) * 6
    *gradients, d_b_O = two_layers_backward(d_outputs, *ctx.saved_tensors, ctx.activation)
    return *gradients, d_b_O if ctx.has_bias else None, None


two_layers_op.register_autograd(_backward, _remember)
