"""From logits to actions: sampling, log-probabilities and entropy for every kind of action space.

Sampling is a function of the logits and of uniform noise from the caller. The same noise gives a row the same
action in any batch.
"""

# N rows, W logits, D action dimensions

import math
from collections.abc import Iterable
from typing import NamedTuple, Protocol

import torch
from gymnasium import spaces
from torch import Tensor

from engram.env.spec import EnvSpec

MEAN_NOISE = 0.5  # the noise with which a continuous action is the mean of its distribution


class ActionSample(NamedTuple):
    actions: Tensor  # in the environment's form: [N] or [N, D]
    log_prob: Tensor  # [N]
    full_log_probs: Tensor  # [N, W], or [N, D] for continuous actions


class ActionEvaluation(NamedTuple):
    log_prob: Tensor  # [N]
    entropy: Tensor  # [N]
    full_log_probs: Tensor


class ActionSpace(Protocol):
    """An action distribution, parametrised by the output of a policy's head."""

    logits: int  # outputs of the head per row
    noise: int  # uniform numbers per row that sampling needs
    encoded: int  # numbers per row of an action as an input

    def sample(self, logits: Tensor, noise: Tensor) -> ActionSample: ...

    def evaluate(self, logits: Tensor, actions: Tensor) -> ActionEvaluation: ...

    def greedy(self, full_log_probs: Tensor, sampled: Tensor) -> Tensor:
        """The most likely action. For continuous actions that is `sampled`, if sampled with noise 0.5."""

    def encode(self, actions: Tensor) -> Tensor:
        """Actions [N] or [N, D] as inputs [N, encoded]: one-hots, or the numbers of continuous ones."""


def make_actions(spec: EnvSpec) -> ActionSpace:
    """The action distribution for an environment's action space."""
    space = spec.single_action_space
    if isinstance(space, spaces.Discrete):
        return CategoricalActions(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        if spec.action_max_params is not None:
            return TypeParameterActions(spec.action_max_params)
        return MultiCategoricalActions([int(n) for n in space.nvec])
    if isinstance(space, spaces.Box):
        return GaussianActions(tuple(space.shape))
    raise ValueError(f"actions must be Discrete, MultiDiscrete or Box, not {space}")


class CategoricalActions:
    """One categorical distribution."""

    noise = 1

    def __init__(self, logits: int) -> None:
        self.logits = self.encoded = logits

    def sample(self, logits: Tensor, noise: Tensor) -> ActionSample:
        return ActionSample(*sample_categorical(at_least_float32(logits), noise))

    def evaluate(self, logits: Tensor, actions: Tensor) -> ActionEvaluation:
        return ActionEvaluation(*evaluate_categorical(at_least_float32(logits), actions.long().reshape(-1, 1)))

    def greedy(self, full_log_probs: Tensor, sampled: Tensor) -> Tensor:
        return full_log_probs.argmax(-1)

    def encode(self, actions: Tensor) -> Tensor:
        return one_hot(self.to_index(actions), self.logits)

    def to_action(self, index: Tensor) -> Tensor:
        """The environment's action for the index of a logit."""
        return index

    def to_index(self, actions: Tensor) -> Tensor:
        return actions.long()


class TypeParameterActions(CategoricalActions):
    """One categorical distribution over all (type, parameter) pairs, ordered by type, then parameter."""

    def __init__(self, max_params: tuple[int, ...]) -> None:
        pairs = [(kind, parameter) for kind, largest in enumerate(max_params) for parameter in range(largest + 1)]
        super().__init__(len(pairs))
        self.pairs = torch.tensor(pairs)
        self.offsets = torch.tensor([0, *(n + 1 for n in max_params[:-1])]).cumsum(0)

    def to_action(self, index: Tensor) -> Tensor:
        self._move_to(index.device)
        return self.pairs[index]

    def to_index(self, actions: Tensor) -> Tensor:
        self._move_to(actions.device)
        return self.offsets[actions[..., 0].long()] + actions[..., 1].long()

    def _move_to(self, device: torch.device) -> None:
        if self.pairs.device != device:
            self.pairs, self.offsets = self.pairs.to(device), self.offsets.to(device)

    def sample(self, logits: Tensor, noise: Tensor) -> ActionSample:
        flat = super().sample(logits, noise)
        return flat._replace(actions=self.to_action(flat.actions))

    def evaluate(self, logits: Tensor, actions: Tensor) -> ActionEvaluation:
        return super().evaluate(logits, self.to_index(actions.reshape(-1, 2)))

    def greedy(self, full_log_probs: Tensor, sampled: Tensor) -> Tensor:
        return self.to_action(full_log_probs.argmax(-1))


class MultiCategoricalActions:
    """Several independent categorical distributions."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes, self.logits, self.noise = sizes, sum(sizes), len(sizes)
        self.encoded = self.logits

    def sample(self, logits: Tensor, noise: Tensor) -> ActionSample:
        parts = map(sample_categorical, at_least_float32(logits).split(self.sizes, -1), noise.split(1, -1))
        index, log_prob, log_probs = zip(*parts, strict=True)
        return ActionSample(torch.stack(index, -1), torch.stack(log_prob).sum(0), torch.cat(log_probs, -1))

    def evaluate(self, logits: Tensor, actions: Tensor) -> ActionEvaluation:
        index = actions.long().reshape(-1, len(self.sizes)).split(1, -1)
        parts = map(evaluate_categorical, at_least_float32(logits).split(self.sizes, -1), index)
        log_prob, entropy, log_probs = zip(*parts, strict=True)
        return ActionEvaluation(torch.stack(log_prob).sum(0), torch.stack(entropy).sum(0), torch.cat(log_probs, -1))

    def greedy(self, full_log_probs: Tensor, sampled: Tensor) -> Tensor:
        return torch.stack([part.argmax(-1) for part in full_log_probs.split(self.sizes, -1)], -1)

    def encode(self, actions: Tensor) -> Tensor:
        columns = actions.unbind(-1)
        return torch.cat([one_hot(column, size) for column, size in zip(columns, self.sizes, strict=True)], -1)


class GaussianActions:
    """Independent normal distributions. The logits are the means and the log standard deviations."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.dimensions = self.noise = self.encoded = math.prod(shape)
        self.logits = 2 * self.dimensions

    def sample(self, logits: Tensor, noise: Tensor) -> ActionSample:
        mean, log_std = self.parameters(logits)
        actions = mean + log_std.exp() * torch.special.ndtri(noise.clamp(1e-6, 1 - 1e-6))
        # From the rounded action, since learning sees nothing else.
        log_probs = normal_log_prob((actions - mean) * (-log_std).exp(), log_std)
        return ActionSample(actions.reshape(-1, *self.shape), log_probs.sum(-1), log_probs)

    def evaluate(self, logits: Tensor, actions: Tensor) -> ActionEvaluation:
        mean, log_std = self.parameters(logits)
        deviation = (actions.reshape(-1, self.dimensions) - mean) * (-log_std).exp()
        log_probs = normal_log_prob(deviation, log_std)
        entropy = (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)
        return ActionEvaluation(log_probs.sum(-1), entropy, log_probs)

    def greedy(self, full_log_probs: Tensor, sampled: Tensor) -> Tensor:
        return sampled

    def encode(self, actions: Tensor) -> Tensor:
        return actions.reshape(-1, self.dimensions).clamp(-10, 10)

    def parameters(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Means and log standard deviations [N, D]."""
        mean, log_std = at_least_float32(logits).chunk(2, -1)
        return mean, log_std.clamp(-5, 2)


def sample_categorical(logits: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Indices [N] sampled with uniform noise [N, 1], their log-probabilities [N], and all log-probabilities [N, W]."""
    log_probs = logits.log_softmax(-1)
    index = inverse_cdf(log_probs, noise)
    return index.squeeze(-1), log_probs.gather(-1, index).squeeze(-1), log_probs


def evaluate_categorical(logits: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The log-probabilities [N] of the indices [N, 1], the entropy [N], and all log-probabilities [N, W]."""
    log_probs = logits.log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    return log_probs.gather(-1, index).squeeze(-1), entropy, log_probs


def inverse_cdf(log_probs: Tensor, noise: Tensor) -> Tensor:
    """The index [N, 1] at which the cumulative probability exceeds the noise [N, 1] in [0, 1)."""
    cumulative = log_probs.exp().cumsum(-1)
    index = (cumulative <= noise * cumulative[..., -1:]).sum(-1, keepdim=True)
    return index.clamp_(max=log_probs.shape[-1] - 1)


def one_hot(index: Tensor, size: int) -> Tensor:
    """[N] to [N, size], as floats."""
    return (index.unsqueeze(-1) == torch.arange(size, device=index.device)).float()


def at_least_float32(logits: Tensor) -> Tensor:
    """Logits in float32, unless they are float64: autocast may have lowered their precision."""
    return logits if logits.dtype == torch.float64 else logits.float()


def normal_log_prob(deviation: Tensor, log_std: Tensor) -> Tensor:
    """The log-density of a normal variable, given its deviation from the mean in standard deviations."""
    return -0.5 * deviation.square() - log_std - 0.5 * math.log(2 * math.pi)


def describe_actions(spec: EnvSpec) -> str:
    """The number and kind of actions as text, for messages. Equal texts mean equal action spaces."""
    space = spec.single_action_space
    if isinstance(space, spaces.Discrete):
        return f"{space.n} actions"
    if isinstance(space, spaces.MultiDiscrete) and spec.action_max_params is not None:
        return f"action types with parameters up to {', '.join(map(str, spec.action_max_params))}"
    if isinstance(space, spaces.MultiDiscrete):
        return f"choices among {format_sizes(space.nvec)}"
    return f"continuous actions of {format_sizes(space.shape)}"


def format_sizes(sizes: Iterable[int]) -> str:
    return " x ".join(map(str, sizes))
