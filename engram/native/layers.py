"""A layer with ReLU, and two with tanh or ReLU between them, by the kernels: float32 on the CPU."""

# N rows, I inputs, K units of the first layer, O outputs of the second

import ctypes
from collections.abc import Mapping

import torch
from torch import Tensor

from engram.native.library import kernels, loaded
from engram.native.shapes import Shape, expect
from engram.native.threads import scratch, threads_for

ROWS_PER_THREAD = 12  # fewer are not worth waking one for
PANEL = 64  # units of the first layer are done so many at a time, at most
MOST_OUTPUTS = 32  # each is a sum of its own


class Job(ctypes.Structure):
    """`struct layers` of layers.h."""

    _fields_ = [
        *((name, ctypes.c_long) for name in ("rows", "inputs", "hidden", "outputs", "threads", "relu")),
        ("x", ctypes.c_void_p),
        ("x_row", ctypes.c_long),
        *((name, ctypes.c_void_p) for name in ("w_hidden", "b_hidden", "w_output", "b_output")),
        *((name, ctypes.c_void_p) for name in ("between", "y", "scratch")),
        *((name, ctypes.c_void_p) for name in ("d_y", "d_x", "d_w_hidden", "d_b_hidden", "d_w_output")),
    ]


@torch.compiler.assume_constant_result
def suits(hidden: int, outputs: int = 0) -> bool:
    """Whether the kernels can do layers of these sizes, and have vectors to be faster with."""
    library = kernels()
    return library is not None and _possible(hidden, outputs) and library.engram_kind() != b"plain"


def _possible(hidden: int, outputs: int) -> bool:
    return hidden % PANEL == 0 and outputs <= MOST_OUTPUTS


def one_forward(x: Tensor, w_KI: Tensor, b_K: Tensor) -> Tensor:
    """relu(x · w + b) [N, K]."""
    y = x.new_empty(len(x), len(w_KI))
    _run("forward", x, len(w_KI), 0, "relu", {"w_hidden": w_KI, "b_hidden": b_K, "y": y})
    return y


def one_backward(d_y: Tensor, x: Tensor, w_KI: Tensor, y: Tensor, *, of_x: bool) -> list[Tensor]:
    """Gradients of the weights and biases, and of x if it is wanted."""
    made = _gradients(x, w_KI)
    if not of_x:
        del made["d_x"]
    _run("backward", x, len(w_KI), 0, "relu", {"w_hidden": w_KI, "y": y, "d_y": d_y, **made})
    return list(made.values())


def two_forward(
    x: Tensor, w_KI: Tensor, b_K: Tensor, w_OK: Tensor, b_O: Tensor | None, activation: str, *, keep: bool
) -> tuple[Tensor, Tensor]:
    """Outputs [N, O], and what lies between [N, K], in an order of its own; that is empty if it is not kept."""
    y, between = x.new_empty(len(x), len(w_OK)), x.new_empty(len(x) if keep else 0, len(w_KI))
    held = {"w_hidden": w_KI, "b_hidden": b_K, "w_output": w_OK, "b_output": b_O, "y": y}
    _run("forward", x, len(w_KI), len(w_OK), activation, held | ({"between": between} if keep else {}))
    return y, between


def two_backward(
    d_y: Tensor, x: Tensor, w_KI: Tensor, w_OK: Tensor, between: Tensor, activation: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, of the weights and biases of the first layer, and of the weights of the second."""
    made = _gradients(x, w_KI) | {"d_w_output": x.new_empty(w_OK.shape)}
    held = {"w_hidden": w_KI, "w_output": w_OK, "between": between, "d_y": d_y, **made}
    _run("backward", x, len(w_KI), len(w_OK), activation, held)
    return made["d_x"], made["d_w_hidden"], made["d_b_hidden"], made["d_w_output"]


def _gradients(x: Tensor, w_KI: Tensor) -> dict[str, Tensor]:
    shapes = {"d_w_hidden": w_KI.shape, "d_b_hidden": w_KI.shape[:1], "d_x": x.shape}
    return {name: x.new_empty(shape) for name, shape in shapes.items()}


def _run(
    direction: str, x: Tensor, hidden: int, outputs: int, activation: str, tensors: Mapping[str, Tensor | None]
) -> None:
    _check(x, hidden, outputs, tensors)
    library, x = loaded(), x if x.stride(-1) == 1 else x.contiguous()
    threads = threads_for(len(x), ROWS_PER_THREAD)
    job = Job(len(x), x.shape[1], hidden, outputs, threads, activation == "relu", x.data_ptr(), x.stride(0))
    held = {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}
    for name, tensor in held.items():
        setattr(job, name, tensor.data_ptr())
    job.scratch = scratch(getattr(library, f"engram_layers_{direction}_scratch")(ctypes.byref(job)))
    getattr(library, f"engram_layers_{direction}")(ctypes.byref(job))


def _check(x: Tensor, hidden: int, outputs: int, tensors: Mapping[str, Tensor | None]) -> None:
    if not _possible(hidden, outputs):
        raise ValueError(f"layers: {hidden} units and {outputs} outputs are not sizes that the kernels can do")
    rows, inputs = x.shape
    weight, bias, y = (hidden, inputs), (hidden,), (rows, outputs or hidden)
    shapes: dict[str, Shape] = {
        "x": (rows, inputs),
        "w_hidden": weight, "b_hidden": bias, "w_output": (outputs, hidden), "b_output": (outputs,),
        "between": (rows, hidden), "y": y, "d_y": y, "d_x": (rows, inputs),
        "d_w_hidden": weight, "d_b_hidden": bias, "d_w_output": (outputs, hidden),
    }  # fmt: skip
    expect("layers", {"x": x, **tensors}, shapes)
