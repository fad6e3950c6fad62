"""Adapter for policies that are called with a td: Engram's own, and others with the same call."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
from gymnasium import spaces
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from engram.agent.observations import with_parts
from engram.agent.policies.base import Policy
from engram.agent.previous_step import PreviousStep
from engram.audit.adapters.base import ActingBatch, CallError, PolicyAdapter, PolicyOutput, Segment
from engram.audit.adapters.external_state import leaves, map_state
from engram.audit.retained import copy_policy, restore_retained
from engram.env.spec import EnvSpec


class TdAdapter(PolicyAdapter):
    """`policy(td)` acts, `policy(td, action=actions)` learns; memory is inside the policy.

    A `Policy` receives the memory of a segment's start in the td, as Engram's training passes it. Any other policy is
    restored with `set_memory`, and its training loop is assumed to reset all memory before each rollout.
    """

    kind = "td"
    uses_td = True

    def __init__(self, policy: nn.Module, spec: EnvSpec) -> None:
        super().__init__(policy, spec)
        if callable(getattr(policy, "reset_memory", None)):
            policy.reset_memory()  # type: ignore[operator]  # it may have acted before
        self.memory_in_td = isinstance(policy, Policy)
        self.resets_between_rollouts = not self.memory_in_td
        if self.resets_between_rollouts:
            self.assumed_loop = "calls reset_memory() before each rollout, and set_memory() before learning a segment"
        self.learns_row_subsets = self.memory_in_td or all(
            callable(getattr(policy, name, None)) for name in ("get_memory", "set_memory")
        )
        self.continuous = isinstance(spec.single_action_space, spaces.Box)
        self.reset_works = callable(getattr(policy, "reset_memory", None))
        self.compiled: Any = None  # called in place of the policy
        self.only_starts = False  # episode starts are given as `starts`, and neither as dones nor as truncateds
        self._blank: nn.Module = copy_policy(policy, policy)  # what `reset` restores; never called, so shared by copies

    def constants(self) -> tuple[Any, ...]:
        return (*super().constants(), self._blank)

    def acting_td(self, batch: ActingBatch) -> TensorDictBase:
        rows = batch.dones.shape[0]
        fields = {
            "env_obs": batch.observations,
            "dones": batch.dones,
            "truncateds": batch.truncateds,
            "training_env_id_start": torch.full((rows,), batch.first_id),
        }
        if self.memory_in_td:
            fields["action_noise"] = batch.noise
        if self.only_starts:
            none = torch.zeros_like(batch.dones)
            fields |= {"starts": batch.dones | batch.truncateds, "dones": none, "truncateds": none}
        return self._with_previous(with_parts(self.spec, TensorDict(fields, [rows])))

    def learning_td(self, segment: Segment, memory: Any = None) -> TensorDictBase:
        fields = {"env_obs": segment.observations, "dones": segment.dones, "truncateds": segment.truncateds}
        td = self._with_previous(with_parts(self.spec, TensorDict(fields, segment.shape)))
        if self.memory_in_td:
            rows, steps = segment.shape
            memory = self.empty_memory(rows) if memory is None else memory
            expanded = {name: value.unsqueeze(1).expand(-1, steps, -1, -1) for name, value in memory.items()}
            td["memory"] = TensorDict(expanded, segment.shape)
        return td

    def _act(self, batch: ActingBatch) -> PolicyOutput:
        rows = batch.dones.shape[0]
        self.set_mode(acting=True)
        td = self._call(self.acting_td(batch))
        actions = field(td, "actions", (rows, *self.spec.single_action_space.shape))
        full = distribution(td, rows)
        if self.continuous:  # `full_log_probs` is a density; with fixed noise, actions describe the distribution
            full = actions.reshape(rows, -1) if self.memory_in_td else None
        return PolicyOutput(field(td, "values", (rows,)), field(td, "act_log_prob", (rows,)), actions, full, td=td)

    def learn(self, segment: Segment, memory: Any = None, after_acting: bool = False) -> PolicyOutput:
        self.set_mode(acting=False)
        if not after_acting or not self.memory_in_td:
            self.reset()
        if memory is not None and not self.memory_in_td:
            self.policy.set_memory(deepcopy(memory))  # type: ignore[operator]
        td = self._call(self.learning_td(segment, memory), action=segment.actions)
        value, log_prob = (field(td, name, segment.shape) for name in ("value", "act_log_prob"))
        full = None if self.continuous else distribution(td, segment.dones.numel())
        full = None if full is None else full.reshape(*segment.shape, -1)
        entropy = field(td, "entropy", segment.shape) if "entropy" in td.keys() else None  # noqa: SIM118
        return PolicyOutput(value, log_prob, segment.actions, full, entropy, td)

    def reset(self) -> None:
        if self.reset_works:
            self.policy.reset_memory()  # type: ignore[operator]
        else:
            restore_retained(self.policy, self._blank)

    def memory_of(self, ids: list[int]) -> Any:
        if isinstance(self.policy, Policy):
            return {name: value.clone() for name, value in self.policy.memory_of(torch.tensor(ids)).items()}
        if self.learns_row_subsets:
            return renumbered(deepcopy(self.policy.get_memory()), ids, range(len(ids)))  # type: ignore[operator]
        return None

    def change_memory(self, ids: list[int], change: Callable[[Tensor], Tensor]) -> None:
        policy, rows = self.policy, torch.tensor(ids)
        if isinstance(policy, Policy) and type(policy).memory_of is Policy.memory_of:
            for store in policy.stores().values():
                store.write(rows, change(store.read(rows)))
        elif self.learns_row_subsets:  # it keeps its memory elsewhere
            policy.set_memory(changed_rows(deepcopy(policy.get_memory()), ids, change))  # type: ignore[operator]

    def select_rows(self, memory: Any, rows: list[int]) -> Any:
        if self.memory_in_td:
            return {name: value[rows] for name, value in memory.items()}
        return renumbered(memory, rows, range(len(rows)))

    def memory_numbers(self, rows: int) -> Tensor | None:
        if isinstance(self.policy, Policy):
            memory = self.policy.memory_of(torch.arange(rows))
            return torch.cat([value.detach().flatten(1) for value in memory.values()], 1) if memory else None
        if not callable(getattr(self.policy, "get_memory", None)):
            return None
        by_row = [part for part in rows_by_id(self.policy.get_memory()) if set(part) >= set(range(rows))]  # type: ignore[operator]
        if not by_row:
            return self._memory_of_states(rows)
        return torch.stack([torch.cat([part[row].detach().flatten() for part in by_row]) for row in range(rows)])

    def _memory_of_states(self, rows: int) -> Tensor | None:
        """The memory as numbers if it is not stored by row but as states [layers, rows, size]."""
        parts = [part for part in leaves(self.policy.get_memory()) if part.dim() == 3 and part.shape[1] == rows]  # type: ignore[operator]
        return torch.cat([part.detach().transpose(0, 1).flatten(1) for part in parts], 1) if parts else None

    def to(self, dtype: torch.dtype) -> None:
        super().to(dtype)
        if any(p.dtype != dtype for p in self._blank.parameters() if p.is_floating_point()):
            self._blank = copy_policy(self._blank, self._blank).to(dtype)

    def empty_memory(self, rows: int) -> dict[str, Tensor]:
        assert isinstance(self.policy, Policy)
        one = self.policy.memory_of(torch.arange(1))  # not 0 rows: a policy's own store may not support that
        return {name: value.new_zeros(rows, *value.shape[1:]) for name, value in one.items()}

    def _with_previous(self, td: TensorDictBase) -> TensorDictBase:
        """Adds zeros as previous actions and rewards for policies that read them: they are inputs like any other."""
        previous = getattr(self.policy, "previous", None)
        fields = previous.fields() if isinstance(previous, PreviousStep) else {}
        return td.update({name: one.expand(*td.batch_size, *one.shape).clone() for name, one in fields.items()})

    def _call(self, td: TensorDictBase, **action: Tensor) -> TensorDictBase:
        return (self.policy if self.compiled is None else self.compiled)(td, **action)


def rows_by_id(memory: Any) -> Iterator[Mapping[int, Tensor]]:
    """The mappings from environment ids to tensors anywhere in what `get_memory` returned."""
    if isinstance(memory, Mapping):
        if memory and all(isinstance(key, int) for key in memory):
            yield memory
            return
        memory = tuple(memory.values())
    if isinstance(memory, list | tuple):
        for part in memory:
            yield from rows_by_id(part)


def renumbered(memory: Any, ids: Iterable[int], new_ids: Iterable[int]) -> Any:
    """Memory by environment id with other ids; rows that are not named are left out."""
    if isinstance(memory, Mapping):
        if memory and all(isinstance(key, int) for key in memory):
            return {new: memory[old] for old, new in zip(ids, new_ids, strict=True) if old in memory}
        return {key: renumbered(part, ids, new_ids) for key, part in memory.items()}
    if isinstance(memory, list | tuple):
        return type(memory)(renumbered(part, ids, new_ids) for part in memory)
    return memory


def changed_rows(memory: Any, ids: list[int], change: Callable[[Tensor], Tensor]) -> Any:
    """Memory with a function applied to these rows; to all, where it is not by environment id."""
    if isinstance(memory, Mapping):
        if memory and all(isinstance(key, int) for key in memory):
            return {row: map_state(change, part) if row in ids else part for row, part in memory.items()}
        return {key: changed_rows(part, ids, change) for key, part in memory.items()}
    if isinstance(memory, list | tuple):
        return type(memory)(changed_rows(part, ids, change) for part in memory)
    return map_state(change, memory)


def distribution(td: TensorDictBase, count: int) -> Tensor | None:
    """`full_log_probs` as [count, W]; None when it is missing or has another size."""
    value = td.get("full_log_probs", None)
    if not isinstance(value, Tensor) or value.numel() % max(count, 1):
        return None
    return value.reshape(count, -1)


def field(td: TensorDictBase, name: str, shape: tuple[int, ...]) -> Tensor:
    """A field in this shape. Extra dimensions of size 1 are left to the check `td_fields`."""
    if not isinstance(td, TensorDictBase):
        raise CallError(f"the call returned a {type(td).__name__}, not the td")
    value = td.get(name, None)
    if not isinstance(value, Tensor):
        raise CallError(f"the td has no {name} after the call; it has {', '.join(sorted(map(str, td.keys())))}")
    if value.numel() != math.prod(shape):
        raise CallError(f"{name} is {list(value.shape)}, expected {list(shape)}")
    return value.reshape(shape)
