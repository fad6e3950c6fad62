"""The PPO loss, as a pure function of what a replayed minibatch says and what was stored with it."""

# B segments, T steps

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engram.training.distributed import ALONE, World
from engram.training.settings import PPO


class Losses(NamedTuple):
    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    kl: Tensor
    clip_fraction: Tensor
    l2_init: Tensor | None = None  # how far the weights are from where they began, if that is part of the total
    teacher_action: Tensor | None = None  # how far the policy is from its teacher, likewise
    teacher_value: Tensor | None = None


def ppo_loss(
    log_prob: Tensor,
    entropy: Tensor,
    value: Tensor,
    old_log_prob: Tensor,
    old_value: Tensor,
    advantages: Tensor,
    returns: Tensor,
    weights: Tensor,
    settings: PPO,
    size: Tensor | None = None,
    value_unit: Tensor | float = 1.0,
) -> Losses:
    """The first are [B, T]. `weights` undo the bias of prioritised segments; they are zero where nothing counts.

    `size` is the number of steps that count. For a part of a minibatch it is the whole one's: then the losses of all
    parts add up to that of the whole. Values and returns are measured in `value_unit`.
    """
    steps = (weights > 0).sum().clamp(min=1) if size is None else size

    def mean(x: Tensor) -> Tensor:
        return (x * weights).sum() / steps

    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - settings.clip_coef, 1 + settings.clip_coef)
    policy_loss = -mean(torch.minimum(ratio * advantages, clipped * advantages))

    value, old_value, returns = value / value_unit, old_value / value_unit, returns / value_unit
    error = (value - returns).square()
    if settings.vf_clip_coef is not None:
        near = old_value + (value - old_value).clamp(-settings.vf_clip_coef, settings.vf_clip_coef)
        error = torch.maximum(error, (near - returns).square())
    value_loss = 0.5 * mean(error)

    entropy_mean = mean(entropy)
    total = policy_loss + settings.vf_coef * value_loss - settings.ent_coef * entropy_mean
    with torch.no_grad():
        kl = mean(ratio - 1 - log_ratio)
        clip_fraction = mean(((ratio - 1).abs() > settings.clip_coef).float())
    return Losses(total, policy_loss, value_loss, entropy_mean, kl, clip_fraction)


def add_losses(parts: Sequence[Losses]) -> Losses:
    """The losses of a minibatch from those of its parts, without a graph."""
    columns = [list(column) for column in zip(*parts, strict=True)]
    sums: list[Any] = [None if column[0] is None else sum(x.detach() for x in column) for column in columns]
    return Losses(*sums)


def normalise(advantages: Tensor, there: Tensor, world: World = ALONE, least: Tensor | float = 0.0) -> Tensor:
    """Zero mean and unit variance over the steps that count, of all processes; less if they spread less than `least`.

    Where a task is solved, all that is left of advantages is the error of the values. Made as large as what there was
    to learn, it drives the policy on, into a certainty that the next small change of weights turns into the opposite.
    """
    count = world.sum(there.sum()).clamp(min=2)
    mean = world.sum((advantages * there).sum()) / count
    centred = (advantages - mean) * there
    spread = (world.sum(centred.square().sum()) / (count - 1)).sqrt()
    return centred / spread.clamp(min=1e-8).clamp(min=least)


def typical_size(returns: Tensor, there: Tensor, world: World = ALONE) -> Tensor:
    """The root mean square of the returns of the steps that count, of all processes: a unit for values.

    In it the value loss weighs the same beside the policy's whatever the size of rewards, as the advantages do that are
    normalised. Rewards in tenths would hardly be learned from otherwise, and those in hundreds drown the rest.
    """
    count = world.sum(there.sum()).clamp(min=1)
    return (world.sum((returns.square() * there).sum()) / count).sqrt().clamp(min=1e-3)
