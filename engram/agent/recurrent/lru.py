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

from engram.agent.recurrent.core import Core
from engram.agent.recurrent.fused_lru import fused_recurrence

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


class LRU(Core):
    """Layers of complex units, some of which begin as memories and some as a delay line."""

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

        The others are a delay line: long lifetimes and all angles, from which a linear readout can recover the input
        of any single past step. The first half alone would learn that very slowly.
        """
        longest = math.log(max(horizon, 2))
        for layer in range(self.num_layers):
            decay, angle = (getattr(self, f"{name}_l{layer}") for name in ("decay", "angle"))
            half = self.hidden_size // 2
            decay[:half].uniform_(-longest, 0)
            angle[:half] = torch.rand_like(angle[:half]) * (math.pi * decay[:half].exp()).clamp(max=MAX_ANGLE)
            decay[half:].uniform_(-longest, -longest / 2)
            angle[half:].uniform_(0, math.pi)
