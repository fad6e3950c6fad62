"""PolicyAdapter: how the audit calls a policy, whichever library it was written for."""

# B rows, T steps, W numbers that describe a distribution over actions

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from engram.audit.retained import copy_policy
from engram.env.spec import EnvSpec

_cumsum, _full = torch.cumsum, torch.full  # unpatched, for `fixed_sampling`


@dataclass(frozen=True)
class ActingBatch:
    """One step of consecutive environment rows."""

    observations: Tensor  # [B, …]
    dones: Tensor  # [B]; like truncateds: the observation is the first of an episode
    truncateds: Tensor
    noise: Tensor  # [B, …]: uniform numbers to sample actions with, for policies that accept them
    first_id: int = 0  # environment id of the first row


@dataclass(frozen=True)
class Segment:
    """Several steps of some rows, for learning."""

    observations: Tensor  # [B, T, …]
    dones: Tensor  # [B, T]
    truncateds: Tensor
    actions: Tensor  # [B, T, …]

    @property
    def shape(self) -> tuple[int, int]:
        return self.dones.shape[0], self.dones.shape[1]

    def __getitem__(self, rows: Any) -> "Segment":
        fields = (self.observations, self.dones, self.truncateds, self.actions)
        return Segment(*(field[rows] for field in fields))

    def steps(self, start: int, stop: int | None = None) -> "Segment":
        return self[:, start:stop]

    def without_starts(self) -> "Segment":
        none = torch.zeros_like(self.dones)
        return replace(self, dones=none, truncateds=none)


@dataclass(frozen=True)
class PolicyOutput:
    """The outputs of a policy: [B] when acting, [B, T] when learning."""

    value: Tensor
    log_prob: Tensor  # of the actions
    actions: Tensor
    full: Tensor | None = None  # [.., W]: the whole distribution, where the policy returns it
    entropy: Tensor | None = None
    td: TensorDictBase | None = None  # the returned td, for policies that are called with one

    def numbers(self) -> Tensor:
        """Every output that does not depend on the sampled action, [.., K]."""
        parts = [self.value.unsqueeze(-1)]
        if self.full is not None:
            parts.append(self.full)
        if self.value.dim() == 2:  # learning: the actions were given
            parts.append(self.log_prob.unsqueeze(-1))
        return torch.cat(parts, -1)


class PolicyAdapter(ABC):
    """Calls a policy as its own training loop does."""

    kind: str
    uses_td = False  # called with a td, and expected to have Engram's whole policy interface
    resets_between_rollouts = False  # its training loop resets all memory before a rollout
    acts_in_training_mode = True
    learns_row_subsets = True  # a minibatch may hold any rows in any order
    assumed_loop = ""  # how its training loop is assumed to handle memory

    def __init__(self, policy: nn.Module, spec: EnvSpec) -> None:
        self.policy, self.spec = policy, spec
        self.training_mode: bool | None = None  # None: the mode its training loop uses
        self.fixed_sampling = True  # sampled actions do not depend on random numbers

    def act(self, batch: ActingBatch) -> PolicyOutput:
        """One step, which advances the memory of these rows."""
        with fixed_sampling() if self.fixed_sampling else nullcontext():
            return self._act(batch)

    @abstractmethod
    def _act(self, batch: ActingBatch) -> PolicyOutput: ...

    @abstractmethod
    def learn(self, segment: Segment, memory: Any = None, after_acting: bool = False) -> PolicyOutput:
        """The outputs for a segment, with gradients, that begins with this memory, or with empty memory.

        The memory of acting should not matter here. It is cleared first, unless `after_acting`.
        """

    @abstractmethod
    def reset(self) -> None:
        """Clear the memory of all rows."""

    @abstractmethod
    def memory_of(self, ids: list[int]) -> Any:
        """A copy of these rows' memory, as the training loop stores it for a segment that begins now."""

    @abstractmethod
    def change_memory(self, ids: list[int], change: Callable[[Tensor], Tensor]) -> None:
        """Apply a function to every tensor of these rows' memory, for acting."""

    @abstractmethod
    def select_rows(self, memory: Any, rows: list[int]) -> Any:
        """Some rows of what `memory_of` returned, in this order."""

    @abstractmethod
    def memory_numbers(self, rows: int) -> Tensor | None:
        """The memory of the first rows as numbers [rows, any]; None where it cannot be read."""

    def set_mode(self, acting: bool) -> None:
        """Training or evaluation mode for the next call."""
        mode = self.training_mode
        if mode is None:
            mode = self.acts_in_training_mode or not acting
        if self.policy.training != mode:
            self.policy.train(mode)

    def copy(self) -> Self:
        return copy_policy(self, self.policy, self.constants())

    def constants(self) -> tuple[Any, ...]:
        """The objects that copies of this adapter share."""
        return (self.spec,)

    def begin_rollout(self) -> None:
        if self.resets_between_rollouts:
            self.reset()

    def to(self, dtype: torch.dtype) -> None:
        self.policy.to(dtype)


class CallError(Exception):
    """A call returned something missing or misshapen; the message says what."""


@contextmanager
def fixed_sampling() -> Iterator[None]:
    """Within this context, torch's samplers return quantiles: the median action, the mean of a normal distribution."""
    patches: list[tuple[Any, str, Any]] = [
        (torch, "multinomial", _multinomial),
        (torch.Tensor, "multinomial", _multinomial),
        (torch.Tensor, "exponential_", lambda tensor, *_, **__: tensor.fill_(1.0)),
        (torch, "normal", _normal),
        (torch, "rand", _rand),
    ]
    before = [(owner, name, owner.__dict__.get(name)) for owner, name, _ in patches]
    for owner, name, replacement in patches:
        setattr(owner, name, replacement)
    try:
        yield
    finally:
        for owner, name, original in before:
            delattr(owner, name) if original is None else setattr(owner, name, original)


def _multinomial(weights: Tensor, num_samples: int = 1, *_: Any, **__: Any) -> Tensor:
    cumulative = _cumsum(weights.detach().double(), -1)
    quantiles = (torch.arange(num_samples, device=weights.device) + 0.5) / num_samples
    targets = cumulative[..., -1:] * quantiles
    return torch.searchsorted(cumulative, targets).clamp(max=weights.shape[-1] - 1)


def _normal(mean: Any, std: Any = 1.0, *size: Any, **__: Any) -> Tensor:
    if isinstance(mean, Tensor):
        return mean.clone()
    return std * 0 + mean if isinstance(std, Tensor) else _full(size[0], float(mean))


def _rand(*size: Any, **options: Any) -> Tensor:
    options.pop("generator", None)
    return _full(tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size, 0.5, **options)
