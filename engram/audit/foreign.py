"""What all adapters share: the state of every row is held outside the policy, by whoever calls it."""

# B rows, T steps, N = B * T

from abc import abstractmethod
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from engram.agent.actions import Evaluation, make_actions
from engram.audit.states import RowStates, State, first_state
from engram.audit.subject import Answer, CallError, Moment, Segment, Subject
from engram.env.spec import EnvSpec
from engram.settings import UserError

MOST_ACTIONS = 64  # up to here the probability of every action is asked for


class Foreign(Subject):
    """A policy whose caller holds its state. Here it is held for each row, detached, as its training loop does."""

    def __init__(self, policy: nn.Module, spec: EnvSpec) -> None:
        super().__init__(policy, spec)
        self.actions = make_actions(spec)
        self.states = RowStates(self.begin)
        space = spec.single_action_space
        self.choices = int(space.n) if isinstance(space, spaces.Discrete) and space.n <= MOST_ACTIONS else 0

    def begin(self, rows: int) -> State:
        """The state of rows that have seen nothing."""
        state = first_state(self.policy, rows)
        if state is None:
            raise UserError(
                f"{type(self.policy).__name__}: what state it begins with is not known: it has no recurrent layer of "
                "torch's that would tell; give it a method initial_state(rows)"
            )
        return state

    @abstractmethod
    def step(self, moment: Moment, starts: Tensor, state: State) -> tuple[Answer, State]: ...

    @abstractmethod
    def replay(self, segment: Segment, starts: Tensor, state: State) -> Answer: ...

    def act(self, moment: Moment) -> Answer:
        self.set_mode(acting=True)
        ids = self._ids(moment.first, moment.dones.shape[0])
        answer, state = self.step(moment, moment.dones | moment.truncateds, self.states.take(ids))
        self.states.put(ids, state)
        return answer

    def learn(self, segment: Segment, memory: Any = None, after_acting: bool = False) -> Answer:
        self.set_mode(acting=False)
        state = self.begin(segment.shape[0]) if memory is None else memory
        return self.replay(segment, segment.dones | segment.truncateds, state)

    def forget(self) -> None:
        self.states.clear()

    def memory_of(self, rows: Tensor) -> Any:
        return self.states.take(rows.tolist())

    def some_of(self, memory: Any, rows: list[int]) -> Any:
        return None if memory is None else self.states.select(memory, rows)

    def remembered(self, rows: int) -> Tensor | None:
        return self.states.numbers(self._ids(0, rows)).detach()

    def drawn(self, logits: Any, value: Tensor, noise: Tensor) -> Answer:
        """An acting answer for logits."""
        flat = flat_logits(logits)
        sample = self.actions.sample(flat, noise)
        full = flat if isinstance(self.spec.single_action_space, spaces.Box) else sample.full_log_probs
        return Answer(one_each(value, len(noise)), sample.log_prob, sample.actions, full)

    def judged(self, logits: Any, value: Tensor, segment: Segment) -> Answer:
        """A learning answer for logits and values in the order of [B, T]."""
        rows, steps = segment.shape
        flat = flat_logits(logits).reshape(rows * steps, -1)
        told: Evaluation = self.actions.evaluate(flat, segment.actions.flatten(0, 1))
        full = flat if isinstance(self.spec.single_action_space, spaces.Box) else told.full_log_probs
        value, log_prob, entropy = (
            x.reshape(rows, steps) for x in (one_each(value, rows * steps), told.log_prob, told.entropy)
        )
        return Answer(value, log_prob, segment.actions, full.reshape(rows, steps, -1), entropy)

    def _ids(self, first: int, rows: int) -> list[int]:
        return list(range(first, first + rows))


def flat_logits(logits: Any) -> Tensor:
    """One tensor, whatever form logits come in: a tensor, one for each choice, or a distribution."""
    if isinstance(logits, torch.distributions.Independent):
        logits = logits.base_dist
    if isinstance(logits, torch.distributions.Categorical):
        return logits.logits
    if isinstance(logits, torch.distributions.Normal):
        return torch.cat([logits.loc, logits.scale.log().expand_as(logits.loc)], -1)
    return logits if isinstance(logits, Tensor) else torch.cat(list(logits), -1)


def one_each(value: Tensor, count: int) -> Tensor:
    if value.numel() != count:
        raise CallError(f"one number for each of {count} rows or steps was expected, and {list(value.shape)} came")
    return value.reshape(count)
