"""Advantages: generalised advantage estimation with V-trace clipping, as a pure function."""

# R rows, T steps

from typing import NamedTuple

import torch
from torch import Tensor


class Advantages(NamedTuple):
    advantages: Tensor  # [R, T]
    returns: Tensor  # [R, T]: what the value should have been


def vtrace(
    values_RT: Tensor,
    next_values_RT: Tensor,
    rewards_RT: Tensor,
    ends_RT: Tensor,
    ratio_RT: Tensor,
    gamma: float,
    gae_lambda: float,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
) -> Advantages:
    """Advantage of every step.

    `rewards[t]` and `ends[t]` are those of the action at t. `next_values[t]` is the value of what came of it: the next
    observation's; after a truncation that of the true final observation; after a termination zero. `ratio` is the
    likelihood of the action now over that when it was taken; 1 gives plain GAE.
    """
    rho = ratio_RT.clamp(max=rho_clip)
    carry = gamma * gae_lambda * ratio_RT.clamp(max=c_clip) * (~ends_RT)
    delta = rho * (rewards_RT + gamma * next_values_RT - values_RT)
    advantages = sum_ahead(delta, carry)
    return Advantages(advantages, advantages + values_RT)


def sum_ahead(x_RT: Tensor, carry_RT: Tensor) -> Tensor:
    """y[t] = x[t] + carry[t] * y[t + 1], of all rows, in rounds that each look twice as far ahead as the last."""
    y, carry = x_RT.t().contiguous(), carry_RT.t().contiguous()
    ahead = 1
    while ahead < len(y):
        y[:-ahead] = torch.addcmul(y[:-ahead], carry[:-ahead], y[ahead:])
        carry[:-ahead] = carry[:-ahead] * carry[ahead:]
        ahead *= 2
    return y.t().contiguous()
