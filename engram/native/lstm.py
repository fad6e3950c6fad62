"""A layer of the LSTM by the kernels: the arithmetic of `engram.agent.recurrent.lstm`, float32 on the CPU."""

# T steps, B rows, I input size, H hidden size

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from engram.native import library
from engram.native.library import loaded
from engram.native.shapes import Shape, expect
from engram.native.threads import scratch, threads_for

ROWS_PER_THREAD = 6  # fewer are not worth waking one for
FLOAT = 4  # bytes


class Job(ctypes.Structure):
    """`struct lstm` of lstm.h."""

    _fields_ = [
        *((name, ctypes.c_long) for name in ("steps", "rows", "inputs", "hidden", "threads")),
        ("x", ctypes.c_void_p),
        *((name, ctypes.c_long) for name in ("x_step", "x_row")),
        *((name, ctypes.c_void_p) for name in ("h0", "c0")),
        *((name, ctypes.c_long) for name in ("h0_row", "c0_row")),
        ("starts", ctypes.c_void_p),
        *((name, ctypes.c_long) for name in ("starts_step", "starts_row")),
        *((name, ctypes.c_void_p) for name in ("w_ih", "w_hh", "b_ih", "b_hh", "outputs", "cells", "gates")),
        *((name, ctypes.c_void_p) for name in ("h_end", "c_end")),
        *((name, ctypes.c_long) for name in ("h_end_row", "c_end_row")),
        ("scratch", ctypes.c_void_p),
        ("d_outputs", ctypes.c_void_p),
        *((name, ctypes.c_long) for name in ("d_outputs_step", "d_outputs_row")),
        ("d_cells", ctypes.c_void_p),
        *((name, ctypes.c_long) for name in ("d_cells_step", "d_cells_row")),
        *((name, ctypes.c_void_p) for name in ("d_x", "d_h0", "d_c0", "d_w_ih", "d_w_hh", "d_b")),
    ]


def usable(x: Tensor) -> bool:
    """Whether the kernels can do this layer."""
    return x.numel() > 0 and library.usable(x)


def forward(
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    starts: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor,
    b_hh: Tensor,
    keep_gates: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs [T, B, H], cells [T, B, H] and activated gates [T, B, 4H]; gates are empty if they are not kept."""
    steps, rows, hidden = x.shape[0], x.shape[1], w_hh.shape[1]
    outputs, cells = x.new_empty(steps, rows, hidden), x.new_empty(steps, rows, hidden)
    gates = x.new_empty(steps, rows, 4 * hidden) if keep_gates else x.new_empty(0)
    held = _contiguous(w_ih=w_ih, w_hh=w_hh, b_ih=b_ih, b_hh=b_hh)
    x, h0, c0, starts = _rows_contiguous(x), _rows_contiguous(h0), _rows_contiguous(c0), starts.bool()
    job = _job(x, hidden, starts, held | {"h0": h0, "c0": c0, "outputs": outputs, "cells": cells})
    job.h0_row, job.c0_row = h0.stride(0), c0.stride(0)
    job.gates = gates.data_ptr() if keep_gates else None
    _run("forward", job)
    return outputs, cells, gates


def advance(
    x: Tensor, memory_BLS: Tensor, starts: Tensor, weights: Sequence[Sequence[Tensor]], room: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """All layers, memory as it is stored, h beside c: outputs [T, B, H] and the memory [B, L, 2H] after the steps.

    It is written to `room` if it fits there, which may be the memory before: a row's is read before it is written.
    """
    memory, starts, hidden = _rows_contiguous(memory_BLS), starts.bool(), weights[0][1].shape[1]
    expect("LSTM", {"memory": memory}, {"memory": (x.shape[1], len(weights), 2 * hidden)})
    fits = room is not None and library.usable(room) and room.shape == memory.shape and room.stride(-1) == 1
    after = room if room is not None and fits else memory.new_empty(memory.shape)
    before_layer, after_layer, c = memory.stride(1) * FLOAT, after.stride(1) * FLOAT, hidden * FLOAT
    for layer, (w_ih, w_hh, b_ih, b_hh) in enumerate(weights):
        x, outputs = _rows_contiguous(x), x.new_empty(x.shape[0], x.shape[1], hidden)
        held = _contiguous(w_ih=w_ih, w_hh=w_hh, b_ih=b_ih, b_hh=b_hh)
        job = _job(x, hidden, starts, held | {"outputs": outputs})
        job.h0, job.h_end = memory.data_ptr() + layer * before_layer, after.data_ptr() + layer * after_layer
        job.c0, job.c_end = job.h0 + c, job.h_end + c
        job.h0_row, job.h_end_row = job.c0_row, job.c_end_row = memory.stride(0), after.stride(0)
        _run("forward", job)
        x = outputs
    return x, after


def backward(
    d_outputs: Tensor,
    d_cells: Tensor | None,
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    starts: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    outputs: Tensor,
    cells: Tensor,
    gates: Tensor,
) -> list[Tensor]:
    """Gradients of x, h0, c0, w_ih, w_hh and the bias."""
    shapes = {"d_x": x.shape, "d_h0": h0.shape, "d_c0": c0.shape, "d_w_ih": w_ih.shape, "d_w_hh": w_hh.shape}
    made = {name: x.new_empty(shape) for name, shape in shapes.items()} | {"d_b": x.new_empty(w_ih.shape[0])}
    held = _contiguous(w_ih=w_ih, w_hh=w_hh, outputs=outputs, cells=cells, gates=gates)
    x, h0, c0, d_outputs = (_rows_contiguous(each) for each in (x, h0, c0, d_outputs))
    starts = starts.bool()
    held |= made | {"h0": h0, "c0": c0, "d_outputs": d_outputs}
    if d_cells is not None:
        held["d_cells"] = d_cells = _rows_contiguous(d_cells)
    job = _job(x, w_hh.shape[1], starts, held)
    job.h0_row, job.c0_row = h0.stride(0), c0.stride(0)
    job.d_outputs_step, job.d_outputs_row = d_outputs.stride()[:2]
    if d_cells is not None:
        job.d_cells_step, job.d_cells_row = d_cells.stride()[:2]
    _run("backward", job)
    return list(made.values())


def _job(x: Tensor, hidden: int, starts: Tensor, tensors: dict[str, Tensor]) -> Job:
    steps, rows, inputs = x.shape
    _check(x, hidden, starts, tensors)
    job = Job(steps, rows, inputs, hidden, threads_for(rows, ROWS_PER_THREAD))
    job.x, job.x_step, job.x_row = x.data_ptr(), x.stride(0), x.stride(1)
    job.starts, job.starts_step, job.starts_row = starts.data_ptr(), starts.stride(0), starts.stride(1)
    for name, tensor in tensors.items():
        setattr(job, name, tensor.data_ptr())
    return job


def _check(x: Tensor, hidden: int, starts: Tensor, tensors: dict[str, Tensor]) -> None:
    steps, rows, inputs = x.shape
    memory, sequence = (rows, hidden), (steps, rows, hidden)
    of_inputs, of_hidden, bias = (4 * hidden, inputs), (4 * hidden, hidden), (4 * hidden,)
    shapes: dict[str, Shape] = {
        "x": (steps, rows, inputs),
        "h0": memory, "c0": memory, "w_ih": of_inputs, "w_hh": of_hidden, "b_ih": bias, "b_hh": bias,
        "outputs": sequence, "cells": sequence, "gates": (steps, rows, 4 * hidden),
        "d_outputs": sequence, "d_cells": sequence, "d_x": (steps, rows, inputs), "d_h0": memory, "d_c0": memory,
        "d_w_ih": of_inputs, "d_w_hh": of_hidden, "d_b": bias,
    }  # fmt: skip
    expect("LSTM", {"starts": starts}, {"starts": (steps, rows)}, torch.bool)
    expect("LSTM", {"x": x, **tensors}, shapes)


def _run(direction: str, job: Job) -> None:
    library, where = loaded(), ctypes.byref(job)
    job.scratch = scratch(getattr(library, f"engram_lstm_{direction}_scratch")(where))
    getattr(library, f"engram_lstm_{direction}")(where)


def _contiguous(**tensors: Tensor) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def _rows_contiguous(sequence: Tensor) -> Tensor:
    """[…, B, …] with the numbers of a row side by side: steps and rows may lie anywhere."""
    return sequence if sequence.stride(-1) == 1 else sequence.contiguous()
