"""How logits become actions: sampling, log-probabilities and entropy, for every kind of action space.

Sampling is a function of the logits and of uniform noise, so that who draws the noise decides what is random: the same
noise for a row gives the same action, in whatever batch and order the row arrives.
"""

# N rows, W logits, D action dimensions

import math
from typing import NamedTuple, Protocol

import torch
from gymnasium import spaces
from torch import Tensor

from engram.agent.categorical import evaluate_choice, sample_choice
from engram.env.spec import EnvSpec


class Sample(NamedTuple):
    actions: Tensor  # as the environment takes them: [N] or [N, D]
    log_prob: Tensor  # [N]
    full_log_probs: Tensor  # [N, W], or [N, D] for continuous actions


class Evaluation(NamedTuple):
    log_prob: Tensor  # [N]
    entropy: Tensor  # [N]
    full_log_probs: Tensor


class ActionSpace(Protocol):
    """What a policy's head must provide (`logits` numbers per row) and how actions come of it."""

    logits: int
    noise: int  # uniform numbers needed per row

    def sample(self, logits: Tensor, noise: Tensor) -> Sample: ...

    def evaluate(self, logits: Tensor, actions: Tensor) -> Evaluation: ...

    def greedy(self, full_log_probs: Tensor, sampled: Tensor) -> Tensor:
        """The most likely action; continuous ones are their mean when sampled with noise 0.5."""


def make_actions(spec: EnvSpec) -> ActionSpace:
    space = spec.single_action_space
    if isinstance(space, spaces.Discrete):
        return Flat(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        if spec.action_max_params is not None:
            return TypeAndParameter(spec.action_max_params)
        return Factored([int(n) for n in space.nvec])
    if isinstance(space, spaces.Box):
        return Gaussian(tuple(space.shape))
    raise ValueError(f"actions must be Discrete, MultiDiscrete or Box, not {space}")


class Flat:
    """One categorical choice."""

    noise = 1

    def __init__(self, logits: int) -> None:
        self.logits = logits

    def sample(self, logits: Tensor, noise: Tensor) -> Sample:
        return Sample(*sample_choice(precise(logits), noise))

    def evaluate(self, logits: Tensor, actions: Tensor) -> Evaluation:
        return Evaluation(*evaluate_choice(precise(logits), actions.long().reshape(-1, 1))[:3])

    def greedy(self, full_log_probs: Tensor, sampled: Tensor) -> Tensor:
        return full_log_probs.argmax(-1)

    def to_action(self, index: Tensor) -> Tensor:
        """What the environment takes, for the index of a logit."""
        return index

    def to_index(self, actions: Tensor) -> Tensor:
        return actions.long()


class TypeAndParameter(Flat):
    """One choice among all (type, parameter) pairs: the flat index counts the parameters of each type in turn."""

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

    def sample(self, logits: Tensor, noise: Tensor) -> Sample:
        flat = super().sample(logits, noise)
        return flat._replace(actions=self.to_action(flat.actions))

    def evaluate(self, logits: Tensor, actions: Tensor) -> Evaluation:
        return super().evaluate(logits, self.to_index(actions.reshape(-1, 2)))

    def greedy(self, full_log_probs: Tensor, sampled: Tensor) -> Tensor:
        return self.to_action(full_log_probs.argmax(-1))


class Factored:
    """Several independent categorical choices, taken together."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes, self.logits, self.noise = sizes, sum(sizes), len(sizes)

    def sample(self, logits: Tensor, noise: Tensor) -> Sample:
        parts = map(sample_choice, precise(logits).split(self.sizes, -1), noise.split(1, -1))
        index, log_prob, log_probs = zip(*parts, strict=True)
        return Sample(torch.stack(index, -1), torch.stack(log_prob).sum(0), torch.cat(log_probs, -1))

    def evaluate(self, logits: Tensor, actions: Tensor) -> Evaluation:
        index = actions.long().reshape(-1, len(self.sizes)).split(1, -1)
        parts = map(evaluate_choice, precise(logits).split(self.sizes, -1), index)
        log_prob, entropy, log_probs, _ = zip(*parts, strict=True)
        return Evaluation(torch.stack(log_prob).sum(0), torch.stack(entropy).sum(0), torch.cat(log_probs, -1))

    def greedy(self, full_log_probs: Tensor, sampled: Tensor) -> Tensor:
        return torch.stack([part.argmax(-1) for part in full_log_probs.split(self.sizes, -1)], -1)


class Gaussian:
    """Independent normal variables; logits are the means and the logarithms of the standard deviations."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.dimensions = self.noise = math.prod(shape)
        self.logits = 2 * self.dimensions

    def sample(self, logits: Tensor, noise: Tensor) -> Sample:
        mean, log_std = self._parameters(logits)
        actions = mean + log_std.exp() * torch.special.ndtri(noise.clamp(1e-6, 1 - 1e-6))
        # Of the action as it was rounded, which is all that learning will know of it.
        log_probs = normal_log_prob((actions - mean) * (-log_std).exp(), log_std)
        return Sample(actions.reshape(-1, *self.shape), log_probs.sum(-1), log_probs)

    def evaluate(self, logits: Tensor, actions: Tensor) -> Evaluation:
        mean, log_std = self._parameters(logits)
        deviation = (actions.reshape(-1, self.dimensions) - mean) * (-log_std).exp()
        log_probs = normal_log_prob(deviation, log_std)
        spread = (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)
        return Evaluation(log_probs.sum(-1), spread, log_probs)

    def greedy(self, full_log_probs: Tensor, sampled: Tensor) -> Tensor:
        return sampled

    def _parameters(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = precise(logits).chunk(2, -1)
        return mean, log_std.clamp(-5, 2)


def precise(logits: Tensor) -> Tensor:
    """At least float32, whatever autocast made of the logits."""
    return logits if logits.dtype == torch.float64 else logits.float()


def normal_log_prob(deviation: Tensor, log_std: Tensor) -> Tensor:
    return -0.5 * deviation.square() - log_std - 0.5 * math.log(2 * math.pi)
