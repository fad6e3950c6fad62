"""The PPO loss, as a pure function of what a replayed minibatch says and what was stored with it."""

# B segments, T steps

from typing import NamedTuple

import torch
from torch import Tensor

from engram.training.settings import PPO


class Losses(NamedTuple):
    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    kl: Tensor
    clip_fraction: Tensor


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
) -> Losses:
    """All arguments are [B, T]. `weights` undo the bias of prioritised segments; they are zero where nothing counts."""
    total_weight = (weights > 0).sum().clamp(min=1)

    def mean(x: Tensor) -> Tensor:
        return (x * weights).sum() / total_weight

    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - settings.clip_coef, 1 + settings.clip_coef)
    policy_loss = -mean(torch.minimum(ratio * advantages, clipped * advantages))

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


def normalise(advantages: Tensor, there: Tensor) -> Tensor:
    """Zero mean and unit variance over the steps that count."""
    count = there.sum().clamp(min=2)
    mean = (advantages * there).sum() / count
    centred = (advantages - mean) * there
    return centred / (centred.square().sum() / (count - 1)).sqrt().clamp(min=1e-8)
