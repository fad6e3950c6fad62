"""The PPO loss."""

# B segments, T steps

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engram.native.ppo import fused_ppo_loss, ppo_kernel_usable
from engram.training.settings import PPO


class Losses(NamedTuple):
    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    kl: Tensor
    clip_fraction: Tensor
    l2_init: Tensor | None = None  # distance of the weights from their initial values, if part of the total
    teacher_action: Tensor | None = None  # distance of the policy from its teacher, if part of the total
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
    """Clipped policy and value losses and entropy: weighted means over the steps, all arguments [B, T].

    `weights` are importance weights, 0 for steps that do not count. `size` is the number of steps that do; for a part
    of a minibatch it is that of the whole, so that the parts' losses add up. Value errors are measured in `value_unit`.
    """
    steps = (weights > 0).sum().clamp(min=1) if size is None else size
    weights = (weights / steps).expand_as(log_prob)
    tensors = (log_prob, entropy, value, old_log_prob, old_value, advantages, returns, weights)
    if ppo_kernel_usable(*tensors):  # the same in C: remove these two lines to change the loss
        return Losses(*fused_ppo_loss(*tensors, value_unit, *_coefficients(settings)))

    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - settings.clip_coef, 1 + settings.clip_coef)
    policy_loss = -(torch.minimum(ratio * advantages, clipped * advantages) * weights).sum()

    error = ((value - returns) / value_unit).square()
    if settings.vf_clip_coef is not None:
        change = ((value - old_value) / value_unit).clamp(-settings.vf_clip_coef, settings.vf_clip_coef)
        error = torch.maximum(error, ((old_value - returns) / value_unit + change).square())
    value_loss = 0.5 * (error * weights).sum()

    mean_entropy = (entropy * weights).sum()
    total = policy_loss + settings.vf_coef * value_loss - (settings.ent_coef or 0.0) * mean_entropy
    with torch.no_grad():
        kl = ((ratio - 1 - log_ratio) * weights).sum()
        clip_fraction = ((ratio != clipped) * weights).sum()
    return Losses(total, policy_loss, value_loss, mean_entropy, kl, clip_fraction)


def sum_losses(parts: Sequence[Losses]) -> Losses:
    """The losses of a minibatch from those of its parts, detached."""
    columns = [list(column) for column in zip(*parts, strict=True)]
    sums: list[Any] = [None if column[0] is None else sum(x.detach() for x in column) for column in columns]
    return Losses(*sums)


def _coefficients(settings: PPO) -> tuple[float, float | None, float, float]:
    return settings.clip_coef, settings.vf_clip_coef, settings.vf_coef, settings.ent_coef or 0.0
