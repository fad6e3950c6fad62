"""The LRU core: a diagonal linear recurrence of complex units, each with a lifetime and an angle, and a gated output.

Its gradient neither vanishes nor explodes within a unit's lifetime, so it bridges long delays (Orvieto et al., 2023).
"""

# T steps, B rows, I input size, H hidden size: complex units, stored as H real parts beside H imaginary parts

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram.agent.recurrent.core import Core, before_each_step, clear
from engram.native import lru as native
from engram.native.library import usable
from engram.native.operator import Operator

LIFETIME = 100  # steps: the longest initial lifetime of a unit
MAX_ANGLE = math.pi / 10  # the largest initial angle per step


def recurrence(drive_TBS: Tensor, first_BS: Tensor, starts_TB: Tensor, real_H: Tensor, imag_H: Tensor) -> Tensor:
    """s = (real + i imag) * s + drive, with s = 0 before an episode start: all states [T, B, 2H]."""
    state, states = first_BS, []
    for drive_BS, starts_B in zip(drive_TBS, starts_TB, strict=True):
        re, im = state.masked_fill(starts_B.unsqueeze(-1), 0).chunk(2, dim=-1)
        state = drive_BS + torch.cat([real_H * re - imag_H * im, real_H * im + imag_H * re], dim=-1)
        states.append(state)
    return torch.stack(states)


def lru_layer(
    x_TBI: Tensor,
    memory_BS: Tensor,
    starts_TB: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor,
    decay: Tensor,
    angle: Tensor,
    run: Callable[..., Tensor] = recurrence,
) -> tuple[Tensor, Tensor]:
    """One layer: outputs [T, B, H] and the last state. A unit keeps exp(-exp(decay)) per step and turns by `angle`."""
    size = memory_BS.shape[1]
    keep = (-decay.exp()).exp()
    drive, skip = F.linear(x_TBI, w_ih, b_ih).split([size, w_ih.shape[0] - size], dim=-1)
    scale = (1 - keep * keep).sqrt().repeat(2)  # so that states have about the size of their inputs
    states = run(drive * scale, memory_BS, starts_TB, keep * angle.cos(), keep * angle.sin())
    return gated_output(F.linear(states, w_hh) + skip), states[-1]


def gated_output(both: Tensor) -> Tensor:
    """tanh of one half, gated by the sigmoid of the other, as in an LSTM."""
    value, gate = both.chunk(2, dim=-1)
    return value.tanh() * gate.sigmoid()


def fused_recurrence(drive: Tensor, first: Tensor, starts: Tensor, real: Tensor, imag: Tensor) -> Tensor:
    """`recurrence`, faster: by the operator below."""
    run = lru_operator if torch.is_grad_enabled() or torch.compiler.is_compiling() else _forward
    return run(drive, first, starts, real, imag)


class LRU(Core):
    gates = 4  # blocks of weight_ih: real and imaginary drive, value and gate of the output
    layer = staticmethod(lru_layer)
    kernel = staticmethod(partial(lru_layer, run=fused_recurrence))

    def shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        size = self.hidden_size
        return {
            "weight_ih": (4 * size, input_size),
            "weight_hh": (2 * size, 2 * size),
            "bias_ih": (4 * size,),
            "decay": (size,),
            "angle": (size,),
        }

    @property
    def memory_shape(self) -> tuple[int, int]:
        return self.num_layers, 2 * self.hidden_size

    def reset_parameters(self) -> None:
        for name, parameter in self.named_parameters():
            if name.startswith("weight"):
                for block in parameter.detach().split(self.hidden_size):
                    nn.init.orthogonal_(block)
            elif name.startswith("bias"):
                nn.init.zeros_(parameter)
        self.spread_time_scales(LIFETIME)

    @torch.no_grad()
    def spread_time_scales(self, horizon: int) -> None:
        """Half of the units remember: lifetimes from 1 to `horizon` steps, and at most half a turn in a lifetime.

        The others are a delay line: long lifetimes and all angles, from which a linear readout tells the input of any
        one past step. Units that only remember learn that very slowly.
        """
        longest = math.log(max(horizon, 2))
        for layer in range(self.num_layers):
            decay, angle = (getattr(self, f"{name}_l{layer}") for name in ("decay", "angle"))
            half = self.hidden_size // 2
            decay[:half].uniform_(-longest, 0)
            angle[:half] = torch.rand_like(angle[:half]) * (math.pi * decay[:half].exp()).clamp(max=MAX_ANGLE)
            decay[half:].uniform_(-longest, -longest / 2)
            angle[half:].uniform_(0, math.pi)


# The recurrence, faster: native kernels where they can run, else PyTorch in place with a hand-derived gradient. Each
# direction is one operator.


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
