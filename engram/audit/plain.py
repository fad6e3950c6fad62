"""Plain modules, `(obs, state) -> (logits, value, state)`: step by step, or with whole sequences."""

# B rows, T steps, A actions

import inspect
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from engram.audit.foreign import Foreign, flat_logits, one_each
from engram.audit.keeping import copy_of
from engram.audit.observations import random_observations
from engram.audit.states import State, first_state, leaves, map_state, row_dims
from engram.audit.subject import Answer, CallError, Moment, Segment
from engram.env.spec import EnvSpec
from engram.settings import UserError

STARTS = ("starts", "start", "done", "dones", "episode_starts", "is_first", "reset", "resets")
STEP, BATCH_FIRST, TIME_FIRST = "one step [B, …]", "sequences [B, T, …]", "sequences [T, B, …]"
LAYOUTS = (STEP, BATCH_FIRST, TIME_FIRST)


class PlainModule(Foreign):
    """The state is cleared by the caller where an episode starts.

    A module that takes `starts` (or `dones`, `episode_starts`, …) as a third argument clears it itself. Whether single
    steps or sequences are taken is found out by calling.
    """

    kind = "module"

    def __init__(self, policy: nn.Module, spec: EnvSpec) -> None:
        self._template: Any = None
        self.layout = STEP
        super().__init__(policy, spec)
        self.told_of_starts = bool({*list(inspect.signature(policy.forward).parameters)[2:]} & {*STARTS})
        self.layout = self._found_layout()

    def begin(self, rows: int) -> State:
        state = first_state(self.policy, rows)
        if state is not None:
            return state
        if self._template is None:
            self._template = self._begun_without()
        one, dims = self._template
        dtype = next(self.policy.parameters(), torch.zeros(())).dtype
        return map_state(lambda dim, part: part.to(dtype).repeat_interleave(rows, int(dim)), dims, one)

    def step(self, moment: Moment, starts: Tensor, state: State) -> tuple[Answer, State]:
        logits, value, state = self._call(moment.observations.unsqueeze(1), starts.unsqueeze(1), state)
        return self.drawn(logits.squeeze(1), value.squeeze(1), moment.noise), state

    def replay(self, segment: Segment, starts: Tensor, state: State) -> Answer:
        logits, values = [], []
        for part in self._parts(starts):
            logit, value, state = self._call(segment.observations[:, part], starts[:, part], state)
            logits.append(logit)
            values.append(value)
        return self.judged(torch.cat(logits, 1).flatten(0, 1), torch.cat(values, 1), segment)

    def _parts(self, starts: Tensor) -> Iterator[slice]:
        """Stretches that go through the module at once: the caller can clear the state only between two calls."""
        steps = starts.shape[1]
        cuts = {0, steps}
        if self.layout == STEP:
            cuts |= set(range(steps))
        elif not self.told_of_starts:
            cuts |= set(starts.any(0).nonzero().flatten().tolist())
        ordered = sorted(cuts)
        return (slice(a, b) for a, b in pairwise(ordered))

    def _call(self, observations: Tensor, starts: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        """[B, t, …] in the module's own layout; logits come back as [B, t, A] and values as [B, t]."""
        if self.told_of_starts:
            answer = self.policy(self._laid(observations), state, self._laid(starts))
        else:
            answer = self.policy(self._laid(observations), self.states.cleared(state, starts[:, 0]))
        return self._read(answer, tuple(starts.shape))

    def _laid(self, field: Tensor) -> Tensor:
        if self.layout == STEP:
            return field.squeeze(1)
        return field if self.layout == BATCH_FIRST else field.transpose(0, 1)

    def _read(self, answer: Any, shape: tuple[int, ...]) -> tuple[Tensor, Tensor, State]:
        if not isinstance(answer, tuple | list) or len(answer) != 3:
            raise CallError(f"the call must return (logits, value, state), and returned {_kind(answer)}")
        rows, steps = shape
        logits, value = flat_logits(answer[0]), one_each(answer[1], rows * steps)
        if logits.numel() != rows * steps * self.actions.logits:
            raise CallError(
                f"logits are {list(logits.shape)}, where {self.actions.logits} were expected for each of {rows} rows "
                f"and {steps} steps"
            )
        if self.layout == TIME_FIRST:
            return logits.reshape(steps, rows, -1).transpose(0, 1), value.view(steps, rows).t(), answer[2]
        return logits.reshape(rows, steps, -1), value.view(rows, steps), answer[2]

    @torch.no_grad()
    def _found_layout(self) -> str:
        """The first that the module can be called with; where there is none, the first call tells why."""
        observations, none = self._some(2), torch.zeros(2, 1, dtype=torch.bool)
        before, self.policy = self.policy, copy_of(self.policy, self.policy)  # a trial leaves no trace
        try:
            for self.layout in LAYOUTS:
                try:
                    _, _, state = self._call(observations, none, self.begin(2))
                    self.states.select(state, [0, 1])
                    return self.layout
                except Exception:
                    continue
        finally:
            self.policy = before
        return STEP

    @torch.no_grad()
    def _begun_without(self) -> tuple[State, State]:
        """The state of one row that begins, and which dimensions count rows, from calls without a state."""
        name = type(self.policy).__name__
        for self.layout in LAYOUTS:
            try:
                one, two, three = (self._after_none(rows) for rows in (1, 2, 3))
            except Exception:
                continue
            zeros = map_state(torch.zeros_like, one)
            if leaves(zeros) and not self._begins_with(zeros):
                raise UserError(f"{name}: the state it begins with is not zero: give it a method initial_state(rows)")
            return zeros, row_dims(two, three)
        raise UserError(
            f"{name}: what state it begins with is not known: it has no recurrent layer of torch's that would tell, "
            "and cannot be called without one; give it a method initial_state(rows)"
        )

    def _after_none(self, rows: int) -> State:
        answer = copy_of(self.policy, self.policy)(self._laid(self._some(rows)), None)
        return self._read(answer, (rows, 1))[2]

    def _begins_with(self, state: State) -> bool:
        said = [
            self._read(copy_of(self.policy, self.policy)(self._laid(self._some(1)), each), (1, 1))[0]
            for each in (None, state)
        ]
        return torch.allclose(said[0], said[1], atol=1e-5)

    def _some(self, rows: int) -> Tensor:
        return random_observations(self.spec, (rows, 1), torch.Generator().manual_seed(1))


def _kind(answer: Any) -> str:
    return f"{len(answer)} things" if isinstance(answer, tuple | list) else f"a {type(answer).__name__}"
