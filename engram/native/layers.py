"""The kernel for two linear layers with tanh or ReLU between: float32 on the CPU."""

# N rows, I inputs, K units of the first layer, O outputs of the second

import ctypes
from collections.abc import Mapping

import torch
from torch import Tensor

from engram.native.library import (
    Shape,
    check_tensors,
    integers,
    kernels,
    num_threads,
    pointers,
    run,
    scratch,
    set_pointers,
)
from engram.native.operator import Operator

ROWS_PER_THREAD = 12  # fewer are not worth a thread
PANEL = 64  # the kernels compute this many units of the first layer at a time
MAX_OUTPUTS = 32


class LayersCall(ctypes.Structure):
    """`struct layers` of layers.h."""

    _fields_ = [
        *integers("rows inputs hidden outputs threads relu"),
        *pointers("x"), *integers("x_row"),
        *pointers("w_hidden b_hidden w_output b_output between y scratch"),
        *pointers("d_y d_x d_w_hidden d_b_hidden d_w_output"),
    ]  # fmt: skip


@torch.compiler.assume_constant_result
def supports(hidden: int, outputs: int) -> bool:
    """Whether the kernels are used for layers of these sizes. Without vector instructions PyTorch is faster."""
    library = kernels()
    return library is not None and _valid(hidden, outputs) and library.engram_instruction_set() != b"plain"


def _valid(hidden: int, outputs: int) -> bool:
    return hidden % PANEL == 0 and 0 < outputs <= MAX_OUTPUTS


def forward(
    x: Tensor, w_KI: Tensor, b_K: Tensor, w_OK: Tensor, b_O: Tensor | None, activation: str, *, keep_hidden: bool
) -> tuple[Tensor, Tensor]:
    """Outputs [N, O], and the hidden activations [N, K] in the kernels' own layout, empty unless kept."""
    y, hidden = x.new_empty(len(x), len(w_OK)), x.new_empty(len(x) if keep_hidden else 0, len(w_KI))
    tensors = {"w_hidden": w_KI, "b_hidden": b_K, "w_output": w_OK, "b_output": b_O, "y": y}
    _run("forward", x, len(w_KI), len(w_OK), activation, tensors | ({"between": hidden} if keep_hidden else {}))
    return y, hidden


def backward(d_y: Tensor, x: Tensor, w_KI: Tensor, w_OK: Tensor, hidden: Tensor, activation: str) -> list[Tensor]:
    """Gradients of x, of the first layer's weights and biases, and of the second layer's weights."""
    shapes = {"d_x": x.shape, "d_w_hidden": w_KI.shape, "d_b_hidden": w_KI.shape[:1], "d_w_output": w_OK.shape}
    gradients = {name: x.new_empty(shape) for name, shape in shapes.items()}
    tensors = {"w_hidden": w_KI, "w_output": w_OK, "between": hidden, "d_y": d_y, **gradients}
    _run("backward", x, len(w_KI), len(w_OK), activation, tensors)
    return list(gradients.values())


def _run(
    direction: str, x: Tensor, hidden: int, outputs: int, activation: str, tensors: Mapping[str, Tensor | None]
) -> None:
    _check(x, hidden, outputs, tensors)
    x = x if x.stride(-1) == 1 else x.contiguous()
    threads = num_threads(len(x), ROWS_PER_THREAD)
    call = LayersCall(len(x), x.shape[1], hidden, outputs, threads, activation == "relu", x.data_ptr(), x.stride(0))
    held = {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}
    set_pointers(call, held)
    call.scratch = scratch(f"layers_{direction}", call)
    run(f"layers_{direction}", call)


def _check(x: Tensor, hidden: int, outputs: int, tensors: Mapping[str, Tensor | None]) -> None:
    if not _valid(hidden, outputs):
        raise ValueError(
            f"layers: got {hidden} units and {outputs} outputs, expected a multiple of {PANEL} units and 1 to "
            f"{MAX_OUTPUTS} outputs"
        )
    rows, inputs = x.shape
    weight, bias, y = (hidden, inputs), (hidden,), (rows, outputs)
    shapes: dict[str, Shape] = {
        "x": (rows, inputs),
        "w_hidden": weight, "b_hidden": bias, "w_output": (outputs, hidden), "b_output": (outputs,),
        "between": (rows, hidden), "y": y, "d_y": y, "d_x": (rows, inputs),
        "d_w_hidden": weight, "d_b_hidden": bias, "d_w_output": (outputs, hidden),
    }  # fmt: skip
    check_tensors("layers", {"x": x, **tensors}, shapes)


# The kernel as a custom operator, with a gradient and a fake implementation for the compiler.


@Operator
def two_layers_op(
    x: Tensor, w_KI: Tensor, b_K: Tensor, w_OK: Tensor, b_O: Tensor | None, activation: str
) -> tuple[Tensor, Tensor]:
    """The outputs, and the hidden activations for the backward pass."""
    return forward(x, w_KI, b_K, w_OK, b_O, activation, keep_hidden=True)


@two_layers_op.register_fake
def _(x, w_KI, b_K, w_OK, b_O, activation):
    return x.new_empty(len(x), len(w_OK)), x.new_empty(len(x), len(w_KI))


@Operator
def two_layers_backward(
    d_NO: Tensor, x: Tensor, w_KI: Tensor, w_OK: Tensor, hidden: Tensor, activation: str
) -> list[Tensor]:
    """Gradients of x, and of the weights and biases of both layers."""
    return [*backward(d_NO, x, w_KI, w_OK, hidden, activation), d_NO.sum(0)]


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
