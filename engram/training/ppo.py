"""The PPO loss, as a pure function of what a replayed minibatch says and what was stored with it."""

# B segments, T steps

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engram.native import ppo as native
from engram.native.library import usable
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
    stored = Stored(old_log_prob, old_value, advantages, returns, (weights / steps).expand_as(log_prob), value_unit)
    return Losses(*PPOLoss.apply(log_prob, entropy, value, stored, settings))


class Stored(NamedTuple):
    """What the loss compares a replay with, [B, T] each."""

    log_prob: Tensor
    value: Tensor
    advantages: Tensor
    returns: Tensor
    weights: Tensor  # of each step in a mean
    value_unit: Tensor | float


class PPOLoss(torch.autograd.Function):
    """The loss, and its gradient at once: autograd would take three times as many small operations."""

    @staticmethod
    def forward(ctx: Any, log_prob: Tensor, entropy: Tensor, value: Tensor, stored: Stored, settings: PPO) -> Any:
        """The total; and without a gradient: losses of policy and value, entropy, divergence, and how many clipped."""
        alike = all(each.shape == log_prob.shape for each in (entropy, value, *stored[:-1]))
        compute = native.loss_and_gradient if alike and usable(log_prob) else loss_and_gradient
        clip = -1.0 if settings.vf_clip_coef is None else settings.vf_clip_coef
        losses, gradients = compute(
            log_prob, entropy, value, *stored[:-1], clip=settings.clip_coef, vf_clip=clip,
            value_unit=stored.value_unit, vf_coef=settings.vf_coef, ent_coef=settings.ent_coef,
        )  # fmt: skip
        ctx.save_for_backward(gradients)
        total, *rest = losses.unbind()
        ctx.mark_non_differentiable(*rest)
        return total, *rest

    @staticmethod
    def backward(ctx: Any, d_total: Tensor, *_: Any) -> Any:
        return *(ctx.saved_tensors[0] * d_total).unbind(), None, None


def loss_and_gradient(
    *inputs: Tensor, clip: float, vf_clip: float, value_unit: Tensor | float, vf_coef: float, ent_coef: float
) -> native.LossAndGradient:
    """As the kernels, and with the same inputs."""
    log_prob, entropy, value, old_log_prob, old_value, advantages, returns, weights = inputs
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    bounded = ratio.clamp(1 - clip, 1 + clip)
    gain, bounded_gain = ratio * advantages, bounded * advantages

    difference = (value - returns) / value_unit
    error, d_error = difference.square(), 2 * difference
    if vf_clip >= 0:
        moved = (value - old_value) / value_unit
        near = moved.clamp(-vf_clip, vf_clip)
        difference_near = difference + (near - moved)
        error_near = difference_near.square()
        d_error = torch.where(error >= error_near, d_error, 2 * difference_near * (near == moved))
        error = torch.maximum(error, error_near)

    terms = [torch.minimum(gain, bounded_gain), error, entropy, ratio - 1 - log_ratio, ratio != bounded]
    gained, errors, *rest = (torch.stack(terms) * weights).flatten(1).sum(1).unbind()
    policy, values = -gained, 0.5 * errors
    gradients = [
        -gain * (gain <= bounded_gain) * weights,
        -ent_coef * weights,
        d_error * weights * (0.5 * vf_coef / value_unit),
    ]
    total = policy + vf_coef * values - ent_coef * rest[0]
    return native.LossAndGradient(torch.stack([total, policy, values, *rest]), torch.stack(gradients))


def add_losses(parts: Sequence[Losses]) -> Losses:
    """The losses of a minibatch from those of its parts, without a graph."""
    if len(parts) == 1:
        return Losses(*(None if x is None else x.detach() for x in parts[0]))  # type: ignore[arg-type]
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
