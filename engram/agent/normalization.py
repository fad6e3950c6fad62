"""Running normalisation of observations and values. Statistics are buffers: part of the weights and checkpoints.

They change only between two rollouts (`update`), so acting and learning on the same data see the same numbers and a
replay stays exact.
"""

# N rows, S size of an observation

import torch
from torch import Tensor, nn

from engram.env.parts import OBSERVATION

OBSERVATION_LIMIT = 10.0
MAX_COUNT = 1e6  # then old observations are forgotten slowly
VALUE_RATE = 0.1  # weight of a new rollout in the running mean of returns
MIN_STD = 0.5  # fraction of the largest std so far; with less, a rare failure at a solved task is many stds away
EQUAL_RETURNS = 1e-3  # returns count as equal if their std is a smaller fraction of their mean


class ObservationNormalizer(nn.Module):
    """Observations [N, S] to zero mean and unit variance, clipped. Before the first update it only clips."""

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, size: int, part: str = OBSERVATION) -> None:
        super().__init__()
        self.part = part  # the part of the observation whose statistics these are
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("variance", torch.ones(size))
        self.register_buffer("count", torch.zeros(()))

    def encode(self, part_N: Tensor) -> Tensor:
        """The numbers of a part [N, …] that are normalised: [N, S]."""
        return part_N.flatten(1)

    def forward(self, x_NS: Tensor) -> Tensor:
        return ((x_NS - self.mean) * (self.variance + 1e-6).rsqrt()).clamp(-OBSERVATION_LIMIT, OBSERVATION_LIMIT)

    @torch.no_grad()
    def update(self, count: Tensor, mean_S: Tensor, variance_S: Tensor) -> None:
        """Merge the moments of further observations."""
        total = self.count + count
        weight, delta = count / total, mean_S - self.mean
        self.variance += weight * (variance_S - self.variance + (1 - weight) * delta.square())
        self.mean += weight * delta
        self.count.copy_(total.clamp(max=MAX_COUNT))


class ValueNormalizer(nn.Module):
    """The critic's output in units of the returns: value = mean + std * output (PopArt)."""

    mean: Tensor
    variance: Tensor
    std: Tensor
    largest_std: Tensor  # of the run so far
    updates: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("variance", torch.ones(()))
        self.register_buffer("std", torch.ones(()))
        self.register_buffer("largest_std", torch.zeros(()))
        self.register_buffer("updates", torch.zeros(()))  # 0 until returns differ

    def forward(self, output: Tensor) -> Tensor:
        return output * self.std.to(output.dtype) + self.mean.to(output.dtype)

    def inverse(self, value: Tensor) -> Tensor:
        """The critic's output for a value."""
        return (value - self.mean) / self.std

    @torch.no_grad()
    def begin(self, mean: Tensor, variance: Tensor) -> None:
        """Adopt the statistics of a first rollout, so that an untrained critic predicts its mean return.

        If all its returns are equal, their std is unknown: `updates` stays 0, and the next rollout begins again.
        """
        self.mean.copy_(mean)
        self.variance.copy_(variance)
        self.largest_std.zero_()
        self._update_std()
        self.largest_std.copy_(self.std)
        self.updates.copy_(self.variance.clamp(min=0).sqrt() >= self.std)

    @torch.no_grad()
    def update(self, mean: Tensor, variance: Tensor, layer: nn.Linear | None) -> None:
        """Merge a rollout's statistics. `layer`, the critic's last one, is rescaled so that values do not change."""
        self.updates += 1
        rate = (1 / self.updates).clamp(min=VALUE_RATE)
        old_mean, old_std = self.mean.clone(), self.std.clone()
        self.mean.lerp_(mean, rate)
        self.variance.lerp_(variance, rate).add_(rate * (1 - rate) * (mean - old_mean).square())
        self._update_std()
        self.largest_std.copy_(torch.maximum(self.largest_std, self.std))
        if layer is not None:
            layer.weight *= old_std / self.std
            if layer.bias is not None:
                layer.bias.copy_((old_std * layer.bias + old_mean - self.mean) / self.std)

    def _update_std(self) -> None:
        minimum = torch.maximum((EQUAL_RETURNS * self.mean.abs()).clamp(min=1e-4), MIN_STD * self.largest_std)
        self.std.copy_(torch.maximum(self.variance.clamp(min=0).sqrt(), minimum))
