"""Random scenarios: observations, episode starts and batch orders, drawn in advance and played by a policy."""

# B rows, S steps, K numbers per step

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from engram.agent.actions import make_actions
from engram.agent.observations import pack, torch_dtype, unpack
from engram.audit.adapters.base import ActingBatch, PolicyAdapter, PolicyOutput, Segment
from engram.env.parts import ACTION_MASK
from engram.env.spec import EMPTY_LOCATION, GLOBAL_LOCATION, EnvSpec

USUAL_BOUND = 100
BatchOrder = list[tuple[slice, int]]  # which rows act next, at which of their steps


@dataclass(frozen=True)
class Scenario:
    """The observations, episode starts and noise of some rows, which do not depend on their actions."""

    observations: Tensor  # [B, S, …]
    dones: Tensor  # [B, S]
    truncateds: Tensor
    noise: Tensor  # [B, S, …]

    @property
    def rows(self) -> int:
        return self.dones.shape[0]

    @property
    def steps(self) -> int:
        return self.dones.shape[1]

    @property
    def starts(self) -> Tensor:
        return self.dones | self.truncateds

    def batch(self, rows: slice, step: int) -> ActingBatch:
        # Cloned, so that a policy that writes into its inputs does not change the scenario.
        observations, dones, truncateds, noise = (field[rows, step].clone() for field in self._fields())
        return ActingBatch(observations, dones, truncateds, noise, first_id=rows.start)

    def segment(self, actions: Tensor) -> Segment:
        return Segment(*(field.clone() for field in (self.observations, self.dones, self.truncateds, actions)))

    def part(self, start: int, stop: int | None = None) -> "Scenario":
        """Some of the steps."""
        return Scenario(*(field[:, start:stop] for field in self._fields()))

    def rows_of(self, rows: Sequence[int]) -> "Scenario":
        """Some of the rows."""
        return Scenario(*(field[list(rows)] for field in self._fields()))

    def with_other_past(
        self, row: int | slice, before: int | None, generator: torch.Generator, spec: EnvSpec
    ) -> "Scenario":
        """A copy with other observations of these rows before a step."""
        other = random_observations(spec, (self.rows, self.steps), generator)
        observations = self.observations.clone()
        observations[row, :before] = other[row, :before]
        return replace(self, observations=observations)

    def with_starts(self, dones: Tensor | None = None, truncateds: Tensor | None = None) -> "Scenario":
        """A copy with these episode starts and no others."""
        none = torch.zeros_like(self.dones)
        return replace(
            self, dones=none if dones is None else dones, truncateds=none if truncateds is None else truncateds
        )

    def _fields(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.observations, self.dones, self.truncateds, self.noise


@dataclass(frozen=True)
class PlayedRollout:
    """A policy's outputs for a scenario, [B, S]."""

    scenario: Scenario
    numbers: Tensor  # [B, S, K]: the outputs that do not depend on the sampled action
    value: Tensor
    log_prob: Tensor
    actions: Tensor


def random_scenario(spec: EnvSpec, rows: int, steps: int, generator: torch.Generator, end_chance: float) -> Scenario:
    """Random observations, with episode starts at random steps, half of them after a truncation."""
    starts = torch.rand(rows, steps, generator=generator) < end_chance
    truncated = torch.rand(rows, steps, generator=generator) < 0.5
    noise = torch.rand(rows, steps, make_actions(spec).noise, generator=generator)
    observations = random_observations(spec, (rows, steps), generator)
    return Scenario(observations, starts & ~truncated, starts & truncated, noise)


def whole_batches(rows: int, steps: Iterable[int]) -> BatchOrder:
    """All rows together, step by step."""
    return [(slice(0, rows), step) for step in steps]


def shuffled_slices(rows: int, steps: Iterable[int], generator: torch.Generator) -> BatchOrder:
    """Uneven slices in random order, cut anew every three steps, so that some rows run ahead of others."""
    order: BatchOrder = []
    steps = list(steps)
    for start in range(0, len(steps), 3):
        block = steps[start : start + 3]
        cuts = sorted({0, rows, *torch.randint(1, max(rows, 2), (2,), generator=generator).clamp(max=rows).tolist()})
        queues = [[(slice(a, b), step) for step in block] for a, b in pairwise(cuts)]
        while queues:
            queue = queues[int(torch.randint(len(queues), (1,), generator=generator))]
            order.append(queue.pop(0))
            queues = [queue for queue in queues if queue]
    return order


def play(
    adapter: PolicyAdapter, scenario: Scenario, order: BatchOrder | None = None, ids: Sequence[int] | None = None
) -> PlayedRollout:
    """Act through a scenario from the policy's current memory. `ids`: the rows' environment ids, by default 0, 1, …"""
    order = whole_batches(scenario.rows, range(scenario.steps)) if order is None else order
    outputs: dict[int, dict[int, PolicyOutput]] = {step: {} for _, step in order}
    ids = range(scenario.rows) if ids is None else ids
    for some_rows, step in order:
        for rows in _consecutive(some_rows, ids):
            batch = replace(scenario.batch(rows, step), first_id=ids[rows.start])
            with error_note(f"acting on rows {rows.start} to {rows.stop - 1} of {scenario.rows}, at their step {step}"):
                outputs[step][rows.start] = adapter.act(batch)

    def gather(field: Callable[[PolicyOutput], Tensor]) -> Tensor:
        steps = [
            torch.cat([field(out).detach() for _, out in sorted(outputs[step].items())]) for step in sorted(outputs)
        ]
        return torch.stack(steps, 1)

    return PlayedRollout(
        scenario,
        gather(PolicyOutput.numbers),
        gather(lambda out: out.value),
        gather(lambda out: out.log_prob),
        gather(lambda out: out.actions),
    )


def _consecutive(rows: slice, ids: Sequence[int]) -> Iterator[slice]:
    """Splits a slice of rows into parts with consecutive environment ids."""
    cuts = [row for row in range(rows.start + 1, rows.stop) if ids[row] != ids[row - 1] + 1]
    return (slice(a, b) for a, b in pairwise([rows.start, *cuts, rows.stop]))


@contextmanager
def error_note(doing: str) -> Iterator[None]:
    """Add to an error what was being done when it was raised."""
    try:
        yield
    except Exception as error:
        error.add_note(f"while {doing}")
        raise


def seed_everything(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def random_actions(spec: EnvSpec, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Actions [B, T, …] of the environment's action space."""
    space = make_actions(spec)
    rows, steps = shape
    noise = torch.rand(rows * steps, space.noise, generator=generator)
    actions = space.sample(torch.zeros(rows * steps, space.logits), noise).actions
    return actions.view(rows, steps, *actions.shape[1:])


def random_observations(spec: EnvSpec, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """[*shape, …] as buffers hold them: in the dtype of the observation space, or packed. Every action is possible."""
    if spec.observation_kind == "tokens":
        return _random_tokens(spec, shape, generator)
    parts = {part.name: _random_values(part.space, shape, generator) for part in spec.all_parts}
    if spec.action_mask:
        parts[ACTION_MASK] = torch.ones(*shape, spec.mask_size, dtype=torch.bool)
    return pack(spec, parts)


def at_bounds(spec: EnvSpec, observations: Tensor) -> Tensor:
    """Observations at their upper bound; ten times as large where there is none."""
    parts = unpack(spec, observations)
    return pack(spec, parts | {part.name: _largest(part.space, parts[part.name]) for part in spec.all_parts})


def _largest(space: spaces.Box, values: Tensor) -> Tensor:
    high = torch.as_tensor(space.high)
    if values.dtype == torch.bool:
        return torch.ones_like(values)
    if not values.is_floating_point():
        largest = min(torch.iinfo(values.dtype).max, 2**31)
        return high.to(torch.int64).clamp(max=largest).to(values.dtype).expand_as(values)
    bounded = high.isfinite() & (high.abs() < USUAL_BOUND)
    return torch.where(bounded, high.to(values.dtype), 10 * values)


def _random_values(space: spaces.Box, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    dtype = torch_dtype(np.dtype(space.dtype))
    if dtype == torch.bool:
        return torch.rand(*shape, *space.shape, generator=generator) < 0.5
    full = (*shape, *space.shape)
    if np.issubdtype(space.dtype, np.integer):
        largest = min(int(space.high.max()), 2**31)
        return torch.randint(int(space.low.min()), largest + 1, full, generator=generator).to(dtype)
    low, high = torch.as_tensor(space.low).float(), torch.as_tensor(space.high).float()
    normal, uniform = torch.randn(full, generator=generator), torch.rand(full, generator=generator)
    width = high - low
    bounded = width.isfinite() & (width < USUAL_BOUND)  # wider bounds are limits of the format, not usual values
    return torch.where(bounded, low.nan_to_num() + uniform * width.nan_to_num(posinf=0.0), normal).to(dtype)


def _random_tokens(spec: EnvSpec, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """(location, feature, value): the first is about the agent itself, most are on the grid, the last are empty."""
    count, (height, width) = spec.all_parts[0].shape[0], spec.window
    ids = torch.tensor([feature.id for feature in spec.features])
    largest = torch.tensor([min(2 * max(int(feature.normalization), 1), 255) for feature in spec.features])

    def draw(below: int) -> Tensor:
        return torch.randint(below, (*shape, count), generator=generator)

    location = draw(height) * 16 + draw(width)
    location[..., 0] = GLOBAL_LOCATION
    feature = draw(len(ids))
    value = 1 + (torch.rand((*shape, count), generator=generator) * (largest[feature] - 1)).long()
    tokens = torch.stack([location, ids[feature], value], -1).to(torch.uint8)
    used = torch.randint(min(4, count), count + 1, (*shape, 1), generator=generator)
    tokens[torch.arange(count).expand(*shape, count) >= used] = EMPTY_LOCATION
    return tokens
