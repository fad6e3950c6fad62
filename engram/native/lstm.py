"""The LSTM kernels: drop-ins for `engram.agent.recurrent.fused_lstm`, float32 on the CPU."""

# T steps, B rows, I input size, H hidden size

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from engram.native import library
from engram.native.library import Shape, check_tensors, integers, num_threads, pointers, run, scratch, set_pointers

ROWS_PER_THREAD = 6  # fewer are not worth a thread
FLOAT = 4  # bytes


class LSTMCall(ctypes.Structure):
    """`struct lstm` of lstm.h."""

    _fields_ = [
        *integers("steps rows inputs hidden threads"),
        *pointers("x"), *integers("x_step x_row"),
        *pointers("h0 c0"), *integers("h0_row c0_row"),
        *pointers("starts"), *integers("starts_step starts_row"),
        *pointers("w_ih w_hh b_ih b_hh outputs cells gates"),
        *pointers("h_end c_end"), *integers("h_end_row c_end_row"),
        *pointers("scratch"),
        *pointers("d_outputs"), *integers("d_outputs_step d_outputs_row"),
        *pointers("d_cells"), *integers("d_cells_step d_cells_row"),
        *pointers("d_x d_h0 d_c0 d_w_ih d_w_hh d_b"),
    ]  # fmt: skip


def usable(x: Tensor) -> bool:
    """Whether the kernels are used for these inputs."""
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
    """One layer: outputs [T, B, H], cells [T, B, H] and activated gates [T, B, 4H], empty unless kept."""
    steps, rows, hidden = x.shape[0], x.shape[1], w_hh.shape[1]
    outputs, cells = x.new_empty(steps, rows, hidden), x.new_empty(steps, rows, hidden)
    gates = x.new_empty(steps, rows, 4 * hidden) if keep_gates else x.new_empty(0)
    held = _contiguous(w_ih=w_ih, w_hh=w_hh, b_ih=b_ih, b_hh=b_hh)
    x, h0, c0, starts = _rows_contiguous(x), _rows_contiguous(h0), _rows_contiguous(c0), starts.bool()
    call = _call(x, hidden, starts, held | {"h0": h0, "c0": c0, "outputs": outputs, "cells": cells})
    call.h0_row, call.c0_row = h0.stride(0), c0.stride(0)
    call.gates = gates.data_ptr() if keep_gates else None
    _run("forward", call)
    return outputs, cells, gates


def advance(
    x: Tensor, memory_BLS: Tensor, starts: Tensor, weights: Sequence[Sequence[Tensor]], out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """All layers without gradients: outputs [T, B, H] and the memory [B, L, 2H] after the last step, h beside c.

    The memory is written to `out` if given. That may be `memory_BLS` itself, since a row is read before it is written.
    """
    memory, starts, hidden = _rows_contiguous(memory_BLS), starts.bool(), weights[0][1].shape[1]
    check_tensors("LSTM", {"memory": memory}, {"memory": (x.shape[1], len(weights), 2 * hidden)})
    in_place = out is not None and library.usable(out) and out.shape == memory.shape and out.stride(-1) == 1
    after = out if out is not None and in_place else memory.new_empty(memory.shape)
    layer_bytes, layer_bytes_after, c_offset = memory.stride(1) * FLOAT, after.stride(1) * FLOAT, hidden * FLOAT
    for layer, (w_ih, w_hh, b_ih, b_hh) in enumerate(weights):
        x, outputs = _rows_contiguous(x), x.new_empty(x.shape[0], x.shape[1], hidden)
        held = _contiguous(w_ih=w_ih, w_hh=w_hh, b_ih=b_ih, b_hh=b_hh)
        call = _call(x, hidden, starts, held | {"outputs": outputs})
        call.h0, call.h_end = memory.data_ptr() + layer * layer_bytes, after.data_ptr() + layer * layer_bytes_after
        call.c0, call.c_end = call.h0 + c_offset, call.h_end + c_offset
        call.h0_row, call.h_end_row = call.c0_row, call.c_end_row = memory.stride(0), after.stride(0)
        _run("forward", call)
        x = outputs
    return x, after if out is None or in_place else out.copy_(after)


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
    gradients = {name: x.new_empty(shape) for name, shape in shapes.items()} | {"d_b": x.new_empty(w_ih.shape[0])}
    held = _contiguous(w_ih=w_ih, w_hh=w_hh, outputs=outputs, cells=cells, gates=gates)
    x, h0, c0, d_outputs = (_rows_contiguous(each) for each in (x, h0, c0, d_outputs))
    starts = starts.bool()
    held |= gradients | {"h0": h0, "c0": c0, "d_outputs": d_outputs}
    if d_cells is not None:
        held["d_cells"] = d_cells = _rows_contiguous(d_cells)
    call = _call(x, w_hh.shape[1], starts, held)
    call.h0_row, call.c0_row = h0.stride(0), c0.stride(0)
    call.d_outputs_step, call.d_outputs_row = d_outputs.stride()[:2]
    if d_cells is not None:
        call.d_cells_step, call.d_cells_row = d_cells.stride()[:2]
    _run("backward", call)
    return list(gradients.values())


def _call(x: Tensor, hidden: int, starts: Tensor, tensors: dict[str, Tensor]) -> LSTMCall:
    steps, rows, inputs = x.shape
    _check(x, hidden, starts, tensors)
    call = LSTMCall(steps, rows, inputs, hidden, num_threads(rows, ROWS_PER_THREAD))
    call.x, call.x_step, call.x_row = x.data_ptr(), x.stride(0), x.stride(1)
    call.starts, call.starts_step, call.starts_row = starts.data_ptr(), starts.stride(0), starts.stride(1)
    set_pointers(call, tensors)
    return call


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
    check_tensors("LSTM", {"starts": starts}, {"starts": (steps, rows)}, torch.bool)
    check_tensors("LSTM", {"x": x, **tensors}, shapes)


def _run(direction: str, call: LSTMCall) -> None:
    call.scratch = scratch(f"lstm_{direction}", call)
    run(f"lstm_{direction}", call)


def _contiguous(**tensors: Tensor) -> dict[str, Tensor]:
    """Contiguous tensors, which the caller keeps alive for the kernel: it gets pointers."""
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def _rows_contiguous(sequence: Tensor) -> Tensor:
    """The sequence with a contiguous last dimension; the other strides are free."""
    return sequence if sequence.stride(-1) == 1 else sequence.contiguous()
