"""Recurrent state that the caller holds, detached, for each row: how it is stored, and the adapter for such policies.

A state is a tensor, or tensors in tuples, lists or dicts, each with one dimension that counts rows.
"""

# B rows, T steps

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from engram.agent.actions import make_actions
from engram.audit.adapters.base import ActingBatch, CallError, PolicyAdapter, PolicyOutput, Segment
from engram.env.spec import EnvSpec
from engram.settings import UserError

State = Any  # a tensor, or a tuple, list or dict of states


class ExternalStateAdapter(PolicyAdapter):
    """Keeps the state of every row. A subclass makes the calls."""

    assumed_loop = "carries the state of each row, and learns a segment from the state stored at its first step"

    def __init__(self, policy: nn.Module, spec: EnvSpec) -> None:
        super().__init__(policy, spec)
        self.actions = make_actions(spec)
        self.states = RowStates(self.initial_state)

    def initial_state(self, rows: int) -> State:
        """The state of rows that have seen nothing."""
        state = declared_initial_state(self.policy, rows)
        if state is None:
            state = next(iter(zero_states(self.policy, rows)), None)
        if state is None:
            name = type(self.policy).__name__
            raise UserError(
                f"{name}: its initial state is unknown, since it has no recurrent layer of torch's: "
                f"give {name} a method initial_state(rows)"
            )
        return state

    @abstractmethod
    def act_step(self, batch: ActingBatch, starts: Tensor, state: State) -> tuple[PolicyOutput, State]: ...

    @abstractmethod
    def learn_segment(self, segment: Segment, starts: Tensor, state: State) -> PolicyOutput: ...

    def _act(self, batch: ActingBatch) -> PolicyOutput:
        self.set_mode(acting=True)
        ids = list(range(batch.first_id, batch.first_id + batch.dones.shape[0]))
        output, state = self.act_step(batch, batch.dones | batch.truncateds, self.states.take(ids))
        self.states.put(ids, state)
        return output

    def learn(self, segment: Segment, memory: Any = None, after_acting: bool = False) -> PolicyOutput:
        self.set_mode(acting=False)
        state = self.initial_state(segment.shape[0]) if memory is None else memory
        return self.learn_segment(segment, segment.dones | segment.truncateds, state)

    def reset(self) -> None:
        self.states.clear()

    def memory_of(self, ids: list[int]) -> Any:
        return self.states.take(ids)

    def change_memory(self, ids: list[int], change: Callable[[Tensor], Tensor]) -> None:
        self.states.put(ids, map_state(change, self.states.take(ids)))

    def select_rows(self, memory: Any, rows: list[int]) -> Any:
        return None if memory is None else self.states.select(memory, rows)

    def memory_numbers(self, rows: int) -> Tensor | None:
        return self.states.numbers(list(range(rows))).detach()

    def acting_output(self, logits: Any, value: Tensor, noise: Tensor) -> PolicyOutput:
        """Sample actions from logits."""
        flat = flat_logits(logits)
        sample = self.actions.sample(flat, noise)
        full = flat if isinstance(self.spec.single_action_space, spaces.Box) else sample.full_log_probs
        return PolicyOutput(per_row(value, len(noise)), sample.log_prob, sample.actions, full)

    def learning_output(self, logits: Any, value: Tensor, segment: Segment) -> PolicyOutput:
        """Evaluate the segment's actions; logits and values in the order of [B, T]."""
        rows, steps = segment.shape
        flat = flat_logits(logits).reshape(rows * steps, -1)
        result = self.actions.evaluate(flat, segment.actions.flatten(0, 1))
        full = flat if isinstance(self.spec.single_action_space, spaces.Box) else result.full_log_probs
        value, log_prob, entropy = (
            x.reshape(rows, steps) for x in (per_row(value, rows * steps), result.log_prob, result.entropy)
        )
        return PolicyOutput(value, log_prob, segment.actions, full.reshape(rows, steps, -1), entropy)


def flat_logits(logits: Any) -> Tensor:
    """One tensor from any form of logits: a tensor, several of them, or a distribution."""
    if isinstance(logits, torch.distributions.Independent):
        logits = logits.base_dist
    if isinstance(logits, torch.distributions.Categorical):
        return logits.logits
    if isinstance(logits, torch.distributions.Normal):
        return torch.cat([logits.loc, logits.scale.log().expand_as(logits.loc)], -1)
    return logits if isinstance(logits, Tensor) else torch.cat(list(logits), -1)


def per_row(value: Tensor, count: int) -> Tensor:
    """[count], whatever dimensions of size 1 there are."""
    if value.numel() != count:
        raise CallError(f"expected one number for each of {count} rows or steps, got {list(value.shape)}")
    return value.reshape(count)


def map_state(function: Callable[..., Tensor], state: State, *others: State) -> State:
    """Apply a function to every tensor and keep the structure."""
    if isinstance(state, Tensor):
        return function(state, *others)
    if isinstance(state, Mapping):
        return {key: map_state(function, state[key], *(other[key] for other in others)) for key in state}
    if not isinstance(state, list | tuple):
        return state
    parts = [map_state(function, *pair) for pair in zip(state, *others, strict=True)]
    return type(state)(*parts) if hasattr(state, "_fields") else type(state)(parts)


def leaves(state: State) -> list[Tensor]:
    """Every tensor in a state."""
    found: list[Tensor] = []
    map_state(lambda tensor: found.append(tensor) or tensor, state)  # type: ignore[func-returns-value]
    return found


class RowStates:
    """States by environment id. Unknown rows have the state that `initial(rows)` returns."""

    def __init__(self, initial: Callable[[int], State]) -> None:
        self._initial = initial
        self._row_dims = row_dims(initial(2), initial(3))
        self._rows: dict[int, State] = {}

    def clear(self) -> None:
        self._rows = {}

    def take(self, ids: list[int]) -> State:
        rows = [self._rows[i] if i in self._rows else self._initial(1) for i in ids]
        return map_state(lambda dim, *parts: torch.cat(parts, int(dim)), self._row_dims, *rows)

    def put(self, ids: list[int], state: State) -> None:
        for number, row in enumerate(ids):
            self._rows[row] = map_state(
                lambda dim, part, number=number: part.detach().narrow(int(dim), number, 1).clone(),
                self._row_dims,
                state,
            )

    def select(self, state: State, rows: list[int]) -> State:
        """Some rows of a batched state."""
        index = torch.as_tensor(rows)
        return map_state(lambda dim, part: part.index_select(int(dim), index), self._row_dims, state)

    def cleared(self, state: State, starts_B: Tensor) -> State:
        """The state with the initial state in rows that start an episode."""
        fresh = self._initial(starts_B.shape[0])

        def choose(dim: Tensor, part: Tensor, new: Tensor) -> Tensor:
            shape = [1] * part.dim()
            shape[int(dim)] = -1
            return torch.where(starts_B.view(shape), new.to(part.dtype), part)

        return map_state(choose, self._row_dims, state, fresh)

    def numbers(self, ids: list[int]) -> Tensor:
        """The states of these rows as numbers [rows, any]."""
        parts = map_state(lambda dim, part: part.movedim(int(dim), 0).flatten(1), self._row_dims, self.take(ids))
        return torch.cat([torch.zeros(len(ids), 0), *leaves(parts)], 1)


def row_dims(two: State, three: State) -> State:
    """The dimension of each part that counts rows: it differs between states of two rows and of three."""
    return map_state(_row_dim, two, three)


def _row_dim(two: Tensor, three: Tensor) -> Tensor:
    for dim, sizes in enumerate(zip(two.shape, three.shape, strict=True)):
        if sizes == (2, 3):
            return torch.tensor(dim)
    raise ValueError(
        f"no dimension of the state counts rows: it is {list(two.shape)} for two rows and {list(three.shape)} for three"
    )


def declared_initial_state(policy: nn.Module, rows: int) -> State | None:
    """The result of the policy's own `initial_state(rows)`; None if it has no such method."""
    for name in ("initial_state", "get_initial_state"):
        method = getattr(policy, name, None)
        if callable(method):
            return method(rows)
    return None


def zero_states(policy: nn.Module, rows: int) -> list[State]:
    """Zeros for each recurrent layer of torch's: (h, c) for an LSTM, h for others."""
    dtype = next(policy.parameters(), torch.zeros(())).dtype
    states: list[State] = []
    for module in policy.modules():
        if isinstance(module, nn.RNNBase):
            layers = module.num_layers * (2 if module.bidirectional else 1)
            h = torch.zeros(layers, rows, module.proj_size or module.hidden_size, dtype=dtype)
            c = torch.zeros(layers, rows, module.hidden_size, dtype=dtype)
            states.append((h, c) if isinstance(module, nn.LSTM) else h)
        elif isinstance(module, nn.RNNCellBase):
            h = torch.zeros(rows, module.hidden_size, dtype=dtype)
            states.append((h, h.clone()) if isinstance(module, nn.LSTMCell) else h)
    return states
