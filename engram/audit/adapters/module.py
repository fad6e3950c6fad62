"""Adapter for plain modules, `(obs, state) -> (logits, value, state)`: one step at a time, or whole sequences."""

# B rows, T steps, A actions

import inspect
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from engram.agent.actions import make_actions
from engram.agent.observations import unpack
from engram.audit.adapters.base import ActingBatch, CallError, PolicyOutput, Segment
from engram.audit.adapters.external_state import (
    ExternalStateAdapter,
    State,
    declared_initial_state,
    flat_logits,
    leaves,
    map_state,
    per_row,
    row_dims,
    zero_states,
)
from engram.audit.retained import copy_policy
from engram.audit.scenario import random_observations
from engram.env.spec import EnvSpec
from engram.settings import UserError

STARTS = ("starts", "start", "done", "dones", "episode_starts", "is_first", "reset", "resets", "is_init", "masks")
STEP, BATCH_FIRST, TIME_FIRST = "one step [B, …]", "sequences [B, T, …]", "sequences [T, B, …]"
LAYOUTS = (STEP, BATCH_FIRST, TIME_FIRST)
MakeState = Callable[[nn.Module, int], State]  # the initial state of a policy for this many rows


class ModuleAdapter(ExternalStateAdapter):
    """The caller clears the state where an episode starts.

    A module with a third argument `starts` (or `dones`, `episode_starts`, …) clears it itself. Which layout it takes,
    and which initial state, is found by calling it.
    """

    kind = "module"

    def __init__(self, policy: nn.Module, spec: EnvSpec) -> None:
        parameters = list(inspect.signature(policy.forward).parameters)
        self.takes_starts = bool({*parameters[2:]} & {*STARTS})
        self.policy, self.spec = policy, spec
        self._make_state, self.layout = self._find_call()  # the layout of acting
        super().__init__(policy, spec)
        self.learning_layout = self._find_learning_layout()
        clears = "passes episode starts to the module" if self.takes_starts else "clears it where an episode starts"
        self.assumed_loop = f"{ExternalStateAdapter.assumed_loop}; {clears}"
        if self.learning_layout != self.layout:
            self.assumed_loop += f"; acts on {self.layout} and learns from {self.learning_layout}"

    def initial_state(self, rows: int) -> State:
        return self._make_state(self.policy, rows)

    def act_step(self, batch: ActingBatch, starts: Tensor, state: State) -> tuple[PolicyOutput, State]:
        logits, value, state = self._call(batch.observations.unsqueeze(1), starts.unsqueeze(1), state, self.layout)
        return self.acting_output(logits.squeeze(1), value.squeeze(1), batch.noise), state

    def learn_segment(self, segment: Segment, starts: Tensor, state: State) -> PolicyOutput:
        logits, values = [], []
        for part in self._parts(starts):
            observations = segment.observations[:, part]
            logit, value, state = self._call(observations, starts[:, part], state, self.learning_layout)
            logits.append(logit)
            values.append(value)
        return self.learning_output(torch.cat(logits, 1).flatten(0, 1), torch.cat(values, 1), segment)

    def _parts(self, starts: Tensor) -> Iterator[slice]:
        """Runs of steps for one call each: the caller can clear the state only between calls."""
        steps = starts.shape[1]
        cuts = {0, steps}
        if self.learning_layout == STEP:
            cuts |= set(range(steps))
        elif not self.takes_starts:
            cuts |= set(starts.any(0).nonzero().flatten().tolist())
        return (slice(a, b) for a, b in pairwise(sorted(cuts)))

    def _call(self, observations: Tensor, starts: Tensor, state: State, layout: str) -> tuple[Tensor, Tensor, State]:
        """Call the module with [B, t, …] in this layout; returns logits [B, t, A], values [B, t] and the state."""
        if self.takes_starts:
            result = self.policy(self._observed(observations, layout), state, _arranged(starts, layout))
        else:
            result = self.policy(self._observed(observations, layout), self.states.cleared(state, starts[:, 0]))
        return self._read(result, tuple(starts.shape), layout)

    def _observed(self, observations: Tensor, layout: str) -> Tensor | dict[str, Tensor]:
        """Observations in a layout; those with parts as a dict, in the precision of the weights."""
        rows = _arranged(observations, layout)
        if not self.spec.parts:
            return rows
        dtype = next(self.policy.parameters(), torch.zeros(())).dtype
        parts = unpack(self.spec, rows)
        return {name: part.to(dtype) if part.is_floating_point() else part for name, part in parts.items()}

    def _read(self, result: Any, shape: tuple[int, ...], layout: str) -> tuple[Tensor, Tensor, State]:
        if not isinstance(result, tuple | list) or len(result) != 3:
            raise CallError(f"the call must return (logits, value, state), and returned {_kind(result)}")
        rows, steps = shape
        logits, value = flat_logits(result[0]), per_row(result[1], rows * steps)
        expected = make_actions(self.spec).logits
        if logits.numel() != rows * steps * expected:
            raise CallError(
                f"logits are {list(logits.shape)}; expected {expected} for each of {rows} rows and {steps} steps"
            )
        if layout == TIME_FIRST:
            return logits.reshape(steps, rows, -1).transpose(0, 1), value.view(steps, rows).t(), result[2]
        return logits.reshape(rows, steps, -1), value.view(rows, steps), result[2]

    @torch.no_grad()
    def _find_call(self) -> tuple[MakeState, str]:
        """The first initial state and layout that work for two batch sizes; else raises with the adapter to write."""
        errors = []
        for make_state in self._candidates():
            for layout in LAYOUTS:
                try:
                    before = [make_state(self.policy, rows) for rows in (2, 3)]
                    after = [self._try(rows, state, layout)[2] for rows, state in zip((2, 3), before, strict=True)]
                    map_state(lambda dim, a, b: _same_shape(a, b), row_dims(*before), before[0], after[0])
                except Exception as error:
                    errors.append(error)
                    continue
                return make_state, layout
        telling = [error for error in errors if isinstance(error, CallError)] or errors
        raise UserError(self._missing_adapter(telling[0] if telling else None))

    @torch.no_grad()
    def _find_learning_layout(self) -> str:
        """A module that takes single steps may take sequences too: then its loop learns from those."""
        if self.layout != STEP:
            return self.layout
        for layout in (BATCH_FIRST, TIME_FIRST):
            try:
                for rows, steps in ((2, 3), (5, 4)):
                    before = self.initial_state(rows)
                    map_state(_same_shape, before, self._try(rows, before, layout, steps)[2])
            except Exception:
                continue
            return layout
        return STEP

    def _candidates(self) -> Iterator[MakeState]:
        """Ways to make an initial state, most explicit first."""
        if declared_initial_state(self.policy, 2) is not None:
            yield declared_initial_state
            return
        layers = len(zero_states(self.policy, 1))
        if layers:
            yield lambda policy, rows: zero_states(policy, rows)[0]
        if (template := self._state_after_none()) is not None:
            yield template
        if layers > 1:
            yield lambda policy, rows: tuple(zero_states(policy, rows))
            yield zero_states
        if not layers and template is None:
            yield lambda policy, rows: ()

    def _state_after_none(self) -> MakeState | None:
        """Zeros shaped like the state that a call without a state returns, if such a call begins with zeros."""
        for layout in LAYOUTS:
            try:
                one, two, three = (self._try(rows, None, layout)[2] for rows in (1, 2, 3))
                dims = row_dims(two, three)
            except Exception:
                continue
            if not leaves(one):
                continue
            zeros = map_state(torch.zeros_like, one)
            outputs = [self._try(1, state, layout)[0] for state in (None, zeros)]
            if not torch.allclose(outputs[0], outputs[1], atol=1e-5):
                name = type(self.policy).__name__
                raise UserError(f"{name}: its initial state is not zero: give it a method initial_state(rows)")

            def make(policy: nn.Module, rows: int, zeros: State = zeros, dims: State = dims) -> State:
                dtype = next(policy.parameters(), torch.zeros(())).dtype

                def repeat(dim: Tensor, part: Tensor) -> Tensor:
                    part = part.to(dtype) if part.is_floating_point() else part
                    return part.repeat_interleave(rows, int(dim))

                return map_state(repeat, dims, zeros)

            return make
        return None

    def _try(self, rows: int, state: State, layout: str, steps: int = 1) -> tuple[Tensor, Tensor, State]:
        """What `_call` returns, by a call on a copy, which leaves no trace."""
        observations = random_observations(self.spec, (rows, steps), torch.Generator().manual_seed(1))
        given = [self._observed(observations, layout), state]
        if self.takes_starts:
            given.append(_arranged(torch.zeros(rows, steps, dtype=torch.bool), layout))
        return self._read(copy_policy(self.policy, self.policy)(*given), (rows, steps), layout)

    def _missing_adapter(self, error: Exception | None) -> str:
        name = type(self.policy).__name__
        reason = f" ({type(error).__name__}: {' '.join(str(error).split())[:200]})" if error else ""
        given = ", ".join(inspect.signature(self.policy.forward).parameters)
        lines = ADAPTER_LINES.format(
            name=name,
            arguments=_arguments(type(self.policy), ()),
            size=next((m.hidden_size for m in self.policy.modules() if hasattr(m, "hidden_size")), "HIDDEN_SIZE"),
            call=_arguments(self.policy.forward, ("obs", "state")),
        )
        return (
            f"{name} cannot be played: {name}.forward({given}) is not a call that an adapter knows, or its initial "
            f"state is not known{reason}. Write these lines and audit Audited{name} instead:\n\n{lines}"
        )


ADAPTER_LINES = """class Audited{name}(torch.nn.Module):
    def __init__(self, env):
        super().__init__()
        self.policy = {name}({arguments})

    def initial_state(self, rows):
        return torch.zeros(rows, {size})  # any tensors, tuples or dicts, with one dimension that counts rows

    def forward(self, obs, state, starts):  # one step: obs [rows, ...], starts [rows] is True where an episode starts
        state = torch.where(starts.view(-1, 1), self.initial_state(len(obs)), state)
        logits, value, state = self.policy({call})  # your call
        return logits, value, state
"""


def _arguments(call: Callable[..., Any], known: tuple[str, ...]) -> str:
    """The arguments that a call needs: the first ones as they are known, the others by name, to be filled in."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = [p for p in inspect.signature(call).parameters.values() if p.kind not in kinds]
    needed = [p.name for p in parameters[len(known) :] if p.default is inspect.Parameter.empty]
    return ", ".join([*known, *(f"{name}=..." for name in needed)])


def _arranged(field: Tensor, layout: str) -> Tensor:
    """[B, t, …] as the module takes it."""
    if layout == STEP:
        return field.squeeze(1)
    return field if layout == BATCH_FIRST else field.transpose(0, 1)


def _kind(result: Any) -> str:
    return f"{len(result)} things" if isinstance(result, tuple | list) else f"a {type(result).__name__}"


def _same_shape(one: Tensor, other: Tensor) -> Tensor:
    if one.shape != other.shape:
        raise CallError(f"the state is {list(one.shape)} before a call and {list(other.shape)} after it")
    return one
