"""The recurrence of the LRU core, `engram.agent.recurrent.lru.recurrence`, and its gradient: float32 on the CPU."""

# T steps, B rows, H complex units: states hold H real parts beside H imaginary parts

import ctypes

import torch
from torch import Tensor

from engram.native.library import Shape, check_tensors, integers, num_threads, pointers, run, set_pointers

FLOATS_PER_THREAD = 16384  # fewer are not worth a thread


class LRUCall(ctypes.Structure):
    """`struct lru` of lru.h."""

    _fields_ = [
        *integers("steps rows units threads"),
        *pointers("drive first starts real imag states d_states d_drive d_first d_real d_imag"),
    ]


def forward(drive: Tensor, first: Tensor, starts: Tensor, real: Tensor, imag: Tensor) -> Tensor:
    """All states [T, B, 2H]: s = (real + i imag) * s + drive. `first` is the state before the first step."""
    states = torch.empty_like(drive, memory_format=torch.contiguous_format)
    _run("forward", drive=drive, first=first, starts=starts, real=real, imag=imag, states=states)
    return states


def backward(
    d_states: Tensor, first: Tensor, starts: Tensor, real: Tensor, imag: Tensor, states: Tensor
) -> list[Tensor]:
    """Gradients of drive, first, real and imag."""
    given = {"first": first, "starts": starts, "real": real, "imag": imag, "states": states, "d_states": d_states}
    like = {"d_drive": states, "d_first": first, "d_real": real, "d_imag": imag}
    gradients = {name: torch.empty(tensor.shape, dtype=tensor.dtype) for name, tensor in like.items()}
    _run("backward", **given, **gradients)
    return list(gradients.values())


def _run(direction: str, *, starts: Tensor, **tensors: Tensor) -> None:
    (steps, rows), (units,) = starts.shape, tensors["real"].shape
    sequence, state = (steps, rows, 2 * units), (rows, 2 * units)
    shapes: dict[str, Shape] = dict.fromkeys(tensors, sequence)
    shapes |= {"first": state, "d_first": state, **dict.fromkeys(("real", "imag", "d_real", "d_imag"), (units,))}
    check_tensors("LRU", tensors, shapes)
    held = {name: tensor.contiguous() for name, tensor in tensors.items()} | {"starts": starts.bool().contiguous()}
    call = LRUCall(steps, rows, units, num_threads(steps * rows * units, FLOATS_PER_THREAD))
    set_pointers(call, held)
    run(f"lru_{direction}", call)
