"""Policies that are called with a td: Engram's own, and others written to the same call."""

# B rows, T steps, L layers, Z floats per layer

import math
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
from gymnasium import spaces
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from engram.agent.policies.base import Policy
from engram.audit.keeping import copy_of, restore_kept
from engram.audit.states import leaves
from engram.audit.subject import Answer, CallError, Moment, Segment, Subject
from engram.env.spec import EnvSpec


class TdSubject(Subject):
    """`policy(td)` acts, `policy(td, action=actions)` learns; memory is inside the policy.

    One that is a `Policy` is given the memory a segment began with, in the td, as Engram's training does. Any other is
    put back to it with `set_memory`; its training loop is taken to forget everything before each rollout.
    """

    kind = "td"
    native = True

    def __init__(self, policy: nn.Module, spec: EnvSpec) -> None:
        super().__init__(policy, spec)
        if callable(getattr(policy, "reset_memory", None)):
            policy.reset_memory()  # type: ignore[operator]  # it may have lived before
        self.memory_in_td = isinstance(policy, Policy)
        self.resets_between_rollouts = not self.memory_in_td
        self.learns_any_rows = self.memory_in_td
        self.continuous = isinstance(spec.single_action_space, spaces.Box)
        self.trusts_reset = callable(getattr(policy, "reset_memory", None))
        self.compiled: Any = None  # called in the policy's place
        self._blank: nn.Module = copy_of(policy, policy)

    def acting_td(self, moment: Moment) -> TensorDict:
        rows = moment.dones.shape[0]
        fields = {
            "env_obs": moment.observations,
            "dones": moment.dones,
            "truncateds": moment.truncateds,
            "training_env_id_start": torch.full((rows,), moment.first),
        }
        if self.memory_in_td:
            fields["action_noise"] = moment.noise
        return TensorDict(fields, [rows])

    def learning_td(self, segment: Segment, memory: Any = None) -> TensorDict:
        fields = {"env_obs": segment.observations, "dones": segment.dones, "truncateds": segment.truncateds}
        td = TensorDict(fields, segment.shape)
        if self.memory_in_td:
            rows, steps = segment.shape
            memory = self._nothing(rows) if memory is None else memory
            expanded = {name: value.unsqueeze(1).expand(-1, steps, -1, -1) for name, value in memory.items()}
            td["memory"] = TensorDict(expanded, segment.shape)
        return td

    def act(self, moment: Moment) -> Answer:
        rows = moment.dones.shape[0]
        self.set_mode(acting=True)
        td = self._run(self.acting_td(moment))
        actions = field(td, "actions", (rows, *self.spec.single_action_space.shape))
        full = distribution(td, rows)
        if self.continuous:  # densities of what was drawn say little; with given noise, the actions say it all
            full = actions.reshape(rows, -1) if self.memory_in_td else None
        return Answer(field(td, "values", (rows,)), field(td, "act_log_prob", (rows,)), actions, full, td=td)

    def learn(self, segment: Segment, memory: Any = None, after_acting: bool = False) -> Answer:
        self.set_mode(acting=False)
        if not after_acting or not self.memory_in_td:
            self.forget()
        if memory is not None and not self.memory_in_td:
            self.policy.set_memory(deepcopy(memory))  # type: ignore[operator]
        td = self._run(self.learning_td(segment, memory), action=segment.actions)
        value, log_prob = (field(td, name, segment.shape) for name in ("value", "act_log_prob"))
        full = None if self.continuous else distribution(td, segment.dones.numel())
        full = None if full is None else full.reshape(*segment.shape, -1)
        entropy = field(td, "entropy", segment.shape) if "entropy" in td.keys() else None  # noqa: SIM118
        return Answer(value, log_prob, segment.actions, full, entropy, td)

    def forget(self) -> None:
        if self.trusts_reset:
            self.policy.reset_memory()  # type: ignore[operator]
        else:
            restore_kept(self.policy, self._blank)

    def memory_of(self, rows: Tensor) -> Any:
        if isinstance(self.policy, Policy):
            return {name: value.clone() for name, value in self.policy.memory_of(rows).items()}
        if callable(getattr(self.policy, "get_memory", None)) and callable(getattr(self.policy, "set_memory", None)):
            return deepcopy(self.policy.get_memory())  # type: ignore[operator]
        return None

    def some_of(self, memory: Any, rows: list[int]) -> Any:
        return {name: value[rows] for name, value in memory.items()}

    def remembered(self, rows: int) -> Tensor | None:
        if isinstance(self.policy, Policy):
            memory = self.policy.memory_of(torch.arange(rows))
            return torch.cat([value.detach().flatten(1) for value in memory.values()], 1) if memory else None
        if not callable(getattr(self.policy, "get_memory", None)):
            return None
        by_row = [part for part in rows_by_id(self.policy.get_memory()) if set(part) >= set(range(rows))]  # type: ignore[operator]
        if not by_row:
            return self._of_one_slice(rows)
        return torch.stack([torch.cat([part[row].detach().flatten() for part in by_row]) for row in range(rows)])

    def _of_one_slice(self, rows: int) -> Tensor | None:
        """Memory that is not kept by row: states [layers, rows, size], if there are any."""
        parts = [part for part in leaves(self.policy.get_memory()) if part.dim() == 3 and part.shape[1] == rows]  # type: ignore[operator]
        return torch.cat([part.detach().transpose(0, 1).flatten(1) for part in parts], 1) if parts else None

    def to(self, dtype: torch.dtype) -> None:
        super().to(dtype)
        self._blank.to(dtype)

    def _run(self, td: TensorDict, **action: Tensor) -> TensorDictBase:
        return (self.policy if self.compiled is None else self.compiled)(td, **action)

    def _nothing(self, rows: int) -> dict[str, Tensor]:
        """The memory of rows that have seen nothing."""
        assert isinstance(self.policy, Policy)
        none = self.policy.memory_of(torch.arange(0))
        return {name: value.new_zeros(rows, *value.shape[1:]) for name, value in none.items()}


def rows_by_id(memory: Any) -> Iterator[Mapping[int, Tensor]]:
    """The mappings from environment ids to tensors anywhere in what `get_memory` gave."""
    if isinstance(memory, Mapping):
        if memory and all(isinstance(key, int) for key in memory):
            yield memory
            return
        memory = tuple(memory.values())
    if isinstance(memory, list | tuple):
        for part in memory:
            yield from rows_by_id(part)


def distribution(td: TensorDictBase, count: int) -> Tensor | None:
    """`full_log_probs` as [count, W], or None when it is missing or of another size."""
    value = td.get("full_log_probs", None)
    if not isinstance(value, Tensor) or value.numel() % max(count, 1):
        return None
    return value.reshape(count, -1)


def field(td: TensorDictBase, name: str, shape: tuple[int, ...]) -> Tensor:
    """A field in this shape, if it has as many numbers; one that differs only in its dimensions is another check's."""
    if not isinstance(td, TensorDictBase):
        raise CallError(f"the call returned a {type(td).__name__}, not the td")
    value = td.get(name, None)
    if not isinstance(value, Tensor):
        raise CallError(f"the td has no {name} after the call; it has {', '.join(sorted(map(str, td.keys())))}")
    if value.numel() != math.prod(shape):
        raise CallError(f"{name} is {list(value.shape)}, where {list(shape)} was expected")
    return value.reshape(shape)
