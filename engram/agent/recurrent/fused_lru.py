"""The LRU's recurrence, faster: native kernels where they can run, else PyTorch in place with a hand-derived gradient.

Each direction is one operator, so `torch.compile` has no graph break here.
"""

# T steps, B rows, H hidden size: complex units, stored as H real parts beside H imaginary parts

import torch
from torch import Tensor

from engram.agent.recurrent.core import before_each_step, clear
from engram.native import lru as native
from engram.native.library import usable
from engram.native.operator import Operator


def fused_recurrence(drive: Tensor, first: Tensor, starts: Tensor, real: Tensor, imag: Tensor) -> Tensor:
    """The same as `recurrence`: states [T, B, 2H]."""
    run = lru_operator if torch.is_grad_enabled() or torch.compiler.is_compiling() else _forward
    return run(drive, first, starts, real, imag)


def _forward(drive: Tensor, first: Tensor, starts: Tensor, real: Tensor, imag: Tensor) -> Tensor:
    if usable(drive):
        return native.forward(drive, first, starts, real, imag)
    states, state = torch.empty_like(drive), first
    for t in range(drive.shape[0]):
        (state,) = clear(starts[t], state)
        state = _turn(state, real, imag, drive[t], states[t])
    return states


def _turn(state: Tensor, real: Tensor, imag: Tensor, add: Tensor, out: Tensor) -> Tensor:
    """(real + i imag) * state + add, written to `out`, which may be `add`."""
    (re, im), (add_re, add_im), (out_re, out_im) = (each.chunk(2, dim=-1) for each in (state, add, out))
    torch.addcmul(add_re, real, re, out=out_re).addcmul_(imag, im, value=-1)
    torch.addcmul(add_im, real, im, out=out_im).addcmul_(imag, re)
    return out


@Operator
def lru_operator(drive: Tensor, first: Tensor, starts: Tensor, real: Tensor, imag: Tensor) -> Tensor:
    """States [T, B, 2H]."""
    return _forward(drive, first, starts, real, imag)


@lru_operator.register_fake
def _(drive, first, starts, real, imag):
    return torch.empty_like(drive)


@Operator
def lru_backward_operator(
    d_states: Tensor, first: Tensor, starts: Tensor, real: Tensor, imag: Tensor, states: Tensor
) -> list[Tensor]:
    """Gradients of drive, first, real and imag."""
    if usable(states):
        return native.backward(d_states, first, starts, real, imag, states)
    d_drive, d_state = torch.empty_like(states), torch.zeros_like(first)
    for t in range(states.shape[0] - 1, -1, -1):
        torch.add(d_states[t], d_state, out=d_drive[t])
        d_before = _turn(d_drive[t], real, -imag, torch.zeros_like(first), torch.empty_like(first))
        (d_state,) = clear(starts[t], d_before)
    re, im = before_each_step(first, states, starts).chunk(2, dim=-1)
    d_re, d_im = d_drive.chunk(2, dim=-1)
    d_real = (d_re * re).add_(d_im * im).sum((0, 1))
    d_imag = (d_im * re).sub_(d_re * im).sum((0, 1))
    return [d_drive, d_state.clone(), d_real, d_imag]


@lru_backward_operator.register_fake
def _(d_states, first, starts, real, imag, states):
    return [torch.empty_like(each) for each in (states, first, real, imag)]


def _save_for_backward(ctx, inputs, output) -> None:
    _, first, starts, real, imag = inputs
    ctx.save_for_backward(first, starts, real, imag, output)


def _backward(ctx, d_states):
    d_drive, d_first, d_real, d_imag = lru_backward_operator(d_states, *ctx.saved_tensors)
    return d_drive, d_first, None, d_real, d_imag


lru_operator.register_autograd(_backward, _save_for_backward)
