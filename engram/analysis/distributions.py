"""Action distributions as rows of numbers, and how much two of them differ."""

# N rows, W numbers per distribution: probabilities, or means followed by standard deviations

import math

import torch
from tensordict import TensorDictBase
from torch import Tensor

from engram.agent.actions import ActionSpace, GaussianActions, MultiCategoricalActions

MEAN_NOISE = 0.5  # of an action that is the mean of its distribution


def distributions(action_space: ActionSpace, td: TensorDictBase) -> Tensor:
    """The distributions [N, W] of an acting call. Continuous actions must have been sampled with `MEAN_NOISE`."""
    if not isinstance(action_space, GaussianActions):
        return td["full_log_probs"].exp()
    means_ND = td["actions"].reshape(len(td["actions"]), -1)
    stds_ND = (-td["full_log_probs"] - 0.5 * math.log(2 * math.pi)).exp()  # from the density at the mean
    return torch.cat([means_ND, stds_ND], -1)


def difference(action_space: ActionSpace, first: Tensor, second: Tensor) -> Tensor:
    """Total variation distance [N]: the probability that moves to other actions; 0: none, 1: all of it.

    Several independent actions: the largest of their distances. Continuous actions: exact for equal deviations.
    """
    if isinstance(action_space, GaussianActions):
        (mean, std), (other_mean, other_std) = first.chunk(2, -1), second.chunk(2, -1)
        shift = (mean - other_mean).square() / (0.5 * (std.square() + other_std.square()))
        return torch.erf(shift.sum(-1).sqrt() / math.sqrt(8))
    sizes = action_space.sizes if isinstance(action_space, MultiCategoricalActions) else [first.shape[-1]]
    parts = [part.abs().sum(-1) / 2 for part in (first - second).split(sizes, -1)]
    return torch.stack(parts).amax(0)


def entropy(action_space: ActionSpace, rows: Tensor) -> Tensor:
    """The entropy [N] of each distribution, in nats."""
    if isinstance(action_space, GaussianActions):
        return (rows.chunk(2, -1)[1].log() + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)
    return -torch.special.xlogy(rows, rows).sum(-1)
