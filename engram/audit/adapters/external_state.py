"""Adapters for policies whose caller holds the recurrent state, detached, for each row."""

# B rows, T steps, A actions

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from engram.agent.actions import make_actions
from engram.audit.adapters.base import ActingBatch, CallError, PolicyAdapter, PolicyOutput, Segment
from engram.audit.adapters.row_state import RowStates, State, declared_initial_state, map_state, zero_states
from engram.env.spec import EnvSpec
from engram.settings import UserError

MAX_LISTED_ACTIONS = 64  # with more, not every action's probability is computed


class ExternalStateAdapter(PolicyAdapter):
    """Keeps the state of every row. A subclass makes the calls."""

    assumed_loop = "carries the state of each row, and learns a segment from the state stored at its first step"

    def __init__(self, policy: nn.Module, spec: EnvSpec) -> None:
        super().__init__(policy, spec)
        self.actions = make_actions(spec)
        self.states = RowStates(self.initial_state)
        space = spec.single_action_space
        self.listed_actions = (
            int(space.n) if isinstance(space, spaces.Discrete) and space.n <= MAX_LISTED_ACTIONS else 0
        )

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
