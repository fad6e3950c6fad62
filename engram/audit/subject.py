"""Subject: a policy as the audit plays it, whoever wrote it; what it is told, and what it answers."""

# B rows, T steps, W numbers that describe a distribution over actions

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from engram.env.spec import EnvSpec


@dataclass(frozen=True)
class Moment:
    """One step of some rows that follow one another."""

    observations: Tensor  # [B, …]
    dones: Tensor  # [B], as truncateds: the observation is the first of an episode
    truncateds: Tensor
    noise: Tensor  # [B, …]: what actions are drawn with, where a policy lets others draw it
    first: int = 0  # the environment row of the first one


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
class Answer:
    """What a policy says: [B] when acting, [B, T] when learning."""

    value: Tensor
    log_prob: Tensor  # of the actions
    actions: Tensor
    full: Tensor | None = None  # [.., W]: the whole distribution, where it can be had
    entropy: Tensor | None = None
    td: TensorDictBase | None = None  # as it was returned, by policies that are called with one

    def numbers(self) -> Tensor:
        """All that does not depend on luck, [.., K]."""
        parts = [self.value.unsqueeze(-1)]
        if self.full is not None:
            parts.append(self.full)
        if self.value.dim() == 2:  # learning: the actions were given
            parts.append(self.log_prob.unsqueeze(-1))
        return torch.cat(parts, -1)


class Subject(ABC):
    """What the audit asks of a policy. Every adapter plays it the way the training loop it was written for does."""

    kind: str
    native = False  # called with a td, and expected to have all that Engram asks of a policy
    resets_between_rollouts = False  # its training loop forgets everything before a rollout
    acts_in_training_mode = True
    learns_any_rows = True  # a minibatch may be of some rows, in any order

    def __init__(self, policy: nn.Module, spec: EnvSpec) -> None:
        self.policy, self.spec = policy, spec
        self.training_mode: bool | None = None  # None: as its training loop has it

    @abstractmethod
    def act(self, moment: Moment) -> Answer:
        """One step, which moves the memory of these rows on."""

    @abstractmethod
    def learn(self, segment: Segment, memory: Any = None, after_acting: bool = False) -> Answer:
        """A segment with a graph, from this memory, or from that of a row that has seen nothing.

        What the policy remembers of acting should not matter. It is cleared, unless the call is to come after it.
        """

    @abstractmethod
    def forget(self) -> None:
        """All rows have seen nothing."""

    @abstractmethod
    def memory_of(self, rows: Tensor) -> Any:
        """A copy of these rows' memory, as the training loop keeps it for a segment that begins now."""

    def some_of(self, memory: Any, rows: list[int]) -> Any:
        """What `memory_of` gave, for some of those rows, in this order."""
        raise NotImplementedError

    @abstractmethod
    def remembered(self, rows: int) -> Tensor | None:
        """What each of the first rows remembers, as numbers [rows, any]; None where it cannot be told."""

    def set_mode(self, acting: bool) -> None:
        """The mode for the call that follows."""
        mode = self.training_mode
        if mode is None:
            mode = self.acts_in_training_mode or not acting
        if self.policy.training != mode:
            self.policy.train(mode)

    def begin_rollout(self) -> None:
        if self.resets_between_rollouts:
            self.forget()

    def to(self, dtype: torch.dtype) -> None:
        self.policy.to(dtype)


class CallError(Exception):
    """A call whose answer is not what was asked for; the text says what is missing or misshapen."""
