"""A rehearsal: acting, learning and a reference played row by row, at given sizes, and the smallest one that fails."""

# B rows, S steps

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engram.audit.adapters.base import PolicyAdapter, Segment
from engram.audit.adapters.row_state import map_state
from engram.audit.checks.gradient_health import train_briefly
from engram.audit.context import AuditContext, abs_difference, copy_adapter, scale_weights, tolerance
from engram.audit.scenario import PlayedRollout, Scenario, error_note, play, shuffled_slices, whole_batches

SHORT = 3  # steps before a segment that only fill the memory it begins with
Kind = str  # "acting": it differs from the reference; "learning": it differs from acting that is right


class Rehearsal(NamedTuple):
    """The sizes and conditions of a rehearsal. The defaults are the simplest."""

    rows: int = 2
    horizon: int = 2  # steps of a segment
    segments: int = 1  # per rollout
    rollouts: int = 1
    warmup: int = 0  # acting steps before the first segment, which are not learned from
    ends: float = 0.0  # chance of an episode end, per step; every row has at least one
    both_flags: bool = False  # some ends set dones and truncateds
    slices: bool = False  # batches arrive in uneven slices, out of order
    far_ids: tuple[int, ...] = ()  # blocks of rows begin at these ids too
    minibatches: str = "all"  # or "some": rows in another order; or "one": one row each
    repeats: int = 1  # how often each segment is learned from
    weights: float = 1.0  # factor
    updates: int = 0  # before the rehearsal
    memory: float = 1.0  # factor on the memory that the rehearsal begins with


class Outcome(NamedTuple):
    """[B, S]: how far acting is from the reference, and learning from acting."""

    acting: Tensor
    learning: Tensor
    bound: float

    def off(self, kind: Kind) -> Tensor:
        acting = self.acting > self.bound
        return acting if kind == "acting" else (self.learning > self.bound) & ~acting.any()

    def measured(self, kind: Kind) -> float:
        return float((self.acting if kind == "acting" else self.learning).max())


@torch.no_grad()
def rehearse(audit: AuditContext, way: Rehearsal, kind: Kind = "") -> Outcome:
    """Play and learn, and compare. For one kind of fault alone, only what that needs."""
    adapter = _prepared(audit, way)
    learner, ids = copy_adapter(adapter), _ids(way)
    sampled = _sampled_rows(way) if not audit.mode_matters else []
    references = {row: copy_adapter(adapter) for row in sampled}
    if way.memory != 1.0:
        play(adapter, audit.scenario(79, rows=way.rows, steps=4), ids=ids)
        if (grown := adapter.memory_of(ids)) is not None:
            adapter.load_memory(ids, _scaled(grown, way.memory))
        references = {}
    acting, learning, bound = [], [], 0.0
    for rollout in range(way.rollouts):
        adapter.begin_rollout()
        if adapter.resets_between_rollouts:
            for reference in references.values():
                reference.reset()
        scenario = _scenario(audit, way, rollout)
        first = 0
        while first < scenario.steps:
            steps = way.warmup if way.warmup and first == 0 and rollout == 0 else way.horizon
            part = scenario.part(first, first + steps)
            blank = first == 0 and way.memory == 1.0 and (rollout == 0 or adapter.resets_between_rollouts)
            memory = None if blank else adapter.memory_of(ids)
            played = play(adapter, part, _order(audit, way, part, rollout), ids)
            bound = max(bound, tolerance(played.log_prob, played.value))
            expected = {row: _reference(audit, references[row], part, row, first == 0) for row in references}
            acting.append(_acting_error(played, expected))
            warming = way.warmup and first == 0 and rollout == 0
            learning.append(
                torch.zeros_like(played.value)
                if warming or kind == "acting"
                else _learning_error(learner, played, memory, way)
            )
            first += steps
    return Outcome(torch.cat(acting, 1), torch.cat(learning, 1), bound)


def _prepared(audit: AuditContext, way: Rehearsal) -> PolicyAdapter:
    adapter = audit.adapter(own_mode=True)
    if way.updates:
        with torch.enable_grad():
            train_briefly(audit, adapter, way.updates, 0.01, lambda _: None)
        adapter = copy_adapter(adapter)
        adapter.reset()
    if way.weights != 1.0:
        scale_weights(adapter, way.weights)
    return adapter


def _ids(way: Rehearsal) -> list[int]:
    if not way.far_ids:
        return list(range(way.rows))
    blocks = (0, *way.far_ids)
    size = max(way.rows // len(blocks), 1)
    return [first + i for first in blocks for i in range(size)][: way.rows]


def _sampled_rows(way: Rehearsal) -> list[int]:
    """First and last; of two rows only the last, since the others are compared when learning."""
    return sorted({0, way.rows - 1}) if way.rows > 2 else [way.rows - 1]


def _scenario(audit: AuditContext, way: Rehearsal, rollout: int) -> Scenario:
    steps = way.horizon * way.segments + (way.warmup if rollout == 0 else 0)
    scenario = audit.scenario(80 + rollout, rows=way.rows, steps=steps, end_chance=way.ends)
    if not way.ends:
        return scenario
    generator = audit.generator(180 + rollout)
    dones, truncateds = scenario.dones.clone(), scenario.truncateds.clone()
    for row in range(way.rows):  # every row has an end in what is learned, and some have two in a row
        step = steps - 1 - int(torch.randint(max(min(way.horizon, steps) - 1, 1), (1,), generator=generator))
        dones[row, step] |= row % 2 == 0
        truncateds[row, step] |= row % 2 == 1
        if row % 3 == 0 and step + 1 < steps:
            dones[row, step + 1] = True
    if way.both_flags:
        both = (dones | truncateds) & (torch.rand(dones.shape, generator=generator) < 0.4)
        dones, truncateds = dones | both, truncateds | both
    else:
        truncateds &= ~dones
    return replace(scenario, dones=dones, truncateds=truncateds)


def _order(audit: AuditContext, way: Rehearsal, part: Scenario, rollout: int) -> list[tuple[slice, int]]:
    if way.slices:
        return shuffled_slices(way.rows, range(part.steps), audit.generator(rollout))
    return whole_batches(way.rows, range(part.steps))


def _reference(audit: AuditContext, adapter: PolicyAdapter, part: Scenario, row: int, first: bool) -> Tensor:
    """The outputs of a row that plays alone under id 0, and is reset where its episodes start: [S, K]."""
    outputs = []
    for step in range(part.steps):
        batch = part.batch(slice(row, row + 1), step)
        start = bool(batch.dones | batch.truncateds)
        if start:
            adapter.reset()
        flag = torch.tensor([start and bool(audit.learned_start)])
        none = torch.zeros_like(flag)
        outputs.append(adapter.act(replace(batch, dones=flag, truncateds=none, first_id=0)).numbers()[0])
    return torch.stack(outputs)


def _acting_error(played: PlayedRollout, expected: dict[int, Tensor]) -> Tensor:
    error = torch.zeros_like(played.value)
    for row, numbers in expected.items():
        error[row] = abs_difference(played.numbers[row], numbers).amax(-1)
    return error


def _learning_error(learner: PolicyAdapter, played: PlayedRollout, memory: Any, way: Rehearsal) -> Tensor:
    """How far learning is from acting."""
    segment, error = played.scenario.segment(played.actions), torch.zeros_like(played.value)
    for _ in range(way.repeats):
        for rows in _minibatches(learner, way):
            with error_note(f"learning from a minibatch of {len(rows)} rows and {segment.shape[1]} steps"):
                value, log_prob = _learn(learner, segment, memory, rows, way.rows)
            differences = torch.maximum(
                abs_difference(value, played.value[rows]), abs_difference(log_prob, played.log_prob[rows])
            )
            error[rows] = torch.maximum(error[rows], differences.to(error.dtype))
    return error


def _learn(
    learner: PolicyAdapter, segment: Segment, memory: Any, rows: list[int], all_rows: int
) -> tuple[Tensor, Tensor]:
    if rows == list(range(all_rows)):
        output = learner.learn(segment, memory, after_acting=True)
    else:
        start = None if memory is None else learner.select_rows(memory, rows)
        output = learner.learn(segment[rows], start, after_acting=True)
    return output.value.detach(), output.log_prob.detach()


def _minibatches(learner: PolicyAdapter, way: Rehearsal) -> Iterator[list[int]]:
    every = list(range(way.rows))
    if way.minibatches == "all" or not learner.learns_row_subsets:
        yield every
    elif way.minibatches == "one":
        yield from ([row] for row in every[:6])
    else:
        shuffled = sorted(every, key=lambda row: (row * 7919) % 104729)
        yield shuffled
        yield shuffled[way.rows // 2 :]


def _scaled(memory: Any, factor: float) -> Any:
    return map_state(lambda part: part * factor if part.is_floating_point() else part, memory)


def smallest(way: Rehearsal, fails: Callable[[Rehearsal], bool]) -> Rehearsal:
    """The simplest rehearsal that still fails: one condition after the other is dropped, then sizes are bisected."""
    way = next((small for small in _small(way) if small != way and fails(small)), way)
    blocks = [way._replace(far_ids=(first,)) for first in way.far_ids]
    way = next((block for block in blocks if fails(block)), way)
    steps = way.horizon * way.segments * way.rollouts
    changes: tuple[dict[str, Any], ...] = (
        {"updates": 0, "weights": 1.0},
        {"memory": 1.0},
        {"far_ids": ()},
        {"repeats": 1},
        {"minibatches": "all"},
        {"rollouts": 1},
        {"slices": False},
        {"both_flags": False},
        {"ends": 0.0},
        {"segments": 1, "rollouts": 1, "horizon": 2, "warmup": max(steps - 2, 0)},
        {"segments": 1},
        {"warmup": 0},
    )
    for simpler in changes:
        candidate = way._replace(**simpler)
        if candidate != way and fails(candidate):
            way = candidate
    for field, low in (("rows", 2), ("horizon", 2), ("warmup", 1), ("segments", 2)):
        low = 1 if field == "rows" and not way.slices else low
        way = _bisected(way, field, low, fails)
    return way


def _small(way: Rehearsal) -> Iterator[Rehearsal]:
    """Rehearsals that take little time, each with few of the conditions."""
    plain = Rehearsal(
        min(way.rows, 4), min(way.horizon, 4), weights=way.weights, updates=way.updates, memory=way.memory
    )
    if way.far_ids or way.memory != 1.0:
        return
    few, steps = min(way.rows, 8), way.horizon * way.segments * way.rollouts
    ended = plain._replace(rows=few, horizon=min(way.horizon, 6), ends=0.2)
    yield plain
    yield plain._replace(rows=way.rows)
    yield plain._replace(horizon=way.horizon)
    if way.ends:
        yield ended
        yield ended._replace(both_flags=way.both_flags)
    if way.minibatches != "all":
        yield plain._replace(minibatches=way.minibatches)
        yield ended._replace(minibatches=way.minibatches)
    if way.segments > 1 or way.rollouts > 1:
        yield plain._replace(segments=2)
        yield plain._replace(rollouts=2)
    if way.slices:
        yield ended._replace(ends=0.0, slices=True)
        yield plain._replace(rows=way.rows, slices=True)
    if way.repeats > 1:
        yield plain._replace(repeats=way.repeats)
        yield plain._replace(segments=2, repeats=way.repeats)
    if way.ends:
        yield ended._replace(rows=way.rows)
        yield ended._replace(horizon=way.horizon, rows=4)
    yield plain._replace(rows=2, horizon=3, warmup=steps)
    if way.ends:
        yield plain._replace(rows=2, horizon=3, warmup=steps, ends=0.05)


def _bisected(way: Rehearsal, field: str, low: int, fails: Callable[[Rehearsal], bool]) -> Rehearsal:
    high = getattr(way, field)
    while low < high:
        middle = (low + high) // 2
        if fails(way._replace(**{field: middle})):
            high = middle
        else:
            low = middle + 1
    return way._replace(**{field: high})


def conditions(way: Rehearsal, kind: Kind) -> list[str]:
    """What the smallest failing rehearsal needs, in words."""
    found = []
    if way.warmup > SHORT:
        found.append(f"after {way.warmup} acting steps")
    elif kind == "learning" and (way.warmup or way.segments > 1 or way.rollouts > 1):
        found.append("where a segment begins with memory from before it")
    if way.weights != 1.0:
        found.append(f"with weights {way.weights:g} times as large")
    if way.updates:
        found.append(f"after {way.updates} updates")
    if way.memory != 1.0:
        found.append(f"when memory has grown {way.memory:g} times as large")
    if way.far_ids:
        found.append(f"with environment ids of {way.far_ids[0]} and more beside ids from 0")
    if way.rows > (3 if way.slices or way.ends else 2):
        found.append(f"with {way.rows} rows or more")
    if way.horizon > (3 if way.ends else 2):
        found.append(f"in segments of {way.horizon} steps or more")
    if way.ends:
        both = " and sets dones and truncateds" if way.both_flags else ""
        found.append(
            f"where an episode starts inside a segment{both}"
            if kind == "learning"
            else f"where an episode starts{both}"
        )
    if way.slices:
        found.append("when batches arrive in uneven slices, out of order")
    if way.minibatches != "all":
        found.append("in minibatches of one row" if way.minibatches == "one" else "in minibatches of some rows")
    if way.repeats > 1:
        found.append("when the same segment is learned from again")
    if kind == "acting" and way.segments > 1:
        found.append("from the second segment of a rollout on")
    if kind == "acting" and way.rollouts > 1:
        found.append("from the second rollout on")
    return found
