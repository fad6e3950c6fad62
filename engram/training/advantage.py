"""Advantages: generalised advantage estimation with V-trace clipping."""

# R rows, S segments, T steps

from typing import NamedTuple

import torch
from torch import Tensor

from engram.training.distributed import ALONE, World
from engram.training.experience import Experience, learnable
from engram.training.settings import PPO


class Advantages(NamedTuple):
    """[S, T] each, or [R, T]."""

    advantages: Tensor
    returns: Tensor  # targets of the values
    value_unit: Tensor | float = 1.0  # the value loss measures errors in this unit


class ReturnScale(NamedTuple):
    """The standard deviation of returns; 1 if they are not normalised."""

    value_unit: Tensor | float = 1.0  # the unit in which the critic learns
    largest_std: Tensor | float = 1.0  # of the run so far: the unit of `adv_floor`


NOT_SCALED = ReturnScale()


def compute_advantages(
    experience: Experience, settings: PPO, scale: ReturnScale = NOT_SCALED, world: World = ALONE
) -> Advantages:
    """Advantages, normalised if the settings say so, and returns of every step of a rollout."""
    following = experience.following_steps()
    advantages, returns, _ = vtrace(
        experience.by_row("values"),
        torch.where(following.ends, following.final_values, following.values),
        following.rewards,
        following.ends,
        experience.by_row("ratio"),
        settings.gamma,
        settings.gae_lambda,
        settings.rho_clip,
        settings.c_clip,
        experience.by_row("masked"),
    )
    advantages, returns = experience.by_segment(advantages), experience.store_returns(returns)
    if settings.norm_adv:
        counted = learnable(experience.buffer)
        advantages = normalize(advantages, counted, world, minimum=settings.adv_floor * scale.largest_std)
    return Advantages(advantages, returns, scale.value_unit)


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
    masked_RT: Tensor | None = None,
) -> Advantages:
    """Advantages and returns of every step, [R, T].

    `rewards[t]` and `ends[t]` belong to the action at t. `next_values[t]` is the value of the next observation; after
    a truncation that of the true final observation; after a termination 0. `ratio` is the probability of the action
    under the current policy divided by that under the policy that took it; 1 gives plain GAE.

    The outcome of `masked` steps is unknown. They have no advantage, and steps before them end with the value of the
    first masked observation, as if the rollout ended there.
    """
    rho = ratio_RT.clamp(max=rho_clip)
    discount = gamma * gae_lambda * ratio_RT.clamp(max=c_clip) * (~ends_RT)
    delta = rho * (rewards_RT + gamma * next_values_RT - values_RT)
    if masked_RT is not None:
        delta, discount = delta.masked_fill(masked_RT, 0.0), discount.masked_fill(masked_RT, 0.0)
    advantages = reverse_scan(delta, discount)
    return Advantages(advantages, advantages + values_RT)


def reverse_scan(x_RT: Tensor, discount_RT: Tensor) -> Tensor:
    """y[t] = x[t] + discount[t] * y[t + 1] for all rows, in log2(T) passes."""
    y, discount = x_RT.t().contiguous(), discount_RT.t().contiguous()
    span = 1
    while span < len(y):
        y[:-span] = torch.addcmul(y[:-span], discount[:-span], y[span:])
        discount[:-span] = discount[:-span] * discount[span:]
        span *= 2
    return y.t().contiguous()


def normalize(advantages: Tensor, counted: Tensor, world: World = ALONE, minimum: Tensor | float = 0.0) -> Tensor:
    """Zero mean and unit variance over the steps of all ranks for which `counted` is true; the others become 0.

    A spread below `minimum` is not scaled up to 1.

    On a solved task, advantages are only errors of the critic. Scaled up, they would keep changing the policy.
    """
    count = world.sum(counted.sum()).clamp(min=2)
    mean = world.sum((advantages * counted).sum()) / count
    centred = (advantages - mean) * counted
    spread = (world.sum(centred.square().sum()) / (count - 1)).sqrt()
    return centred / spread.clamp(min=1e-8).clamp(min=minimum)
