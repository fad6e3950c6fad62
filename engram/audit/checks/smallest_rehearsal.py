"""The smallest rehearsal that still fails, and what it needs to fail, in words."""

from collections.abc import Callable, Iterator
from typing import Any

from engram.audit.checks.rehearsal import Kind, Rehearsal

CONDITIONS = ("segments", "rollouts", "warmup", "ends", "both_flags", "slices", "minibatches", "repeats")
WITH_MEMORY = "where a segment begins with memory from before it"
SHORT = 3  # steps before a segment that only fill the memory it begins with


def smallest(way: Rehearsal, fails: Callable[[Rehearsal], bool]) -> Rehearsal:
    """The simplest rehearsal that still fails: one condition after the other is dropped, then sizes are bisected."""
    way = next((small for small in _small(way) if small != way and fails(small)), way)
    blocks = [way._replace(far_ids=(first,)) for first in way.far_ids]
    way = next((block for block in blocks if fails(block)), way)
    steps = way.warmup + way.horizon * way.segments * way.rollouts
    changes: tuple[dict[str, Any], ...] = (
        {"updates": 0, "weights": 1.0},
        {"memory": 1.0},
        {"repeated": False},
        {"zeros": False},
        {"bounds": False},
        {"gradients": False},
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
    plain = way._replace(**{name: Rehearsal._field_defaults[name] for name in CONDITIONS})
    plain = plain._replace(rows=min(way.rows, 4), horizon=min(way.horizon, 4))
    if way.far_ids or way.memory != 1.0 or way.repeated or way.zeros or way.bounds:
        return
    few, steps = min(way.rows, 8), way.warmup + way.horizon * way.segments * way.rollouts
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
    if way.warmup or way.segments > 1 or way.rollouts > 1:
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
    while high // 2 > low and fails(way._replace(**{field: high // 2})):  # even sizes alone may fail
        high //= 2
    low = max(low, high // 2)
    while low < high:
        middle = (low + high) // 2
        if fails(way._replace(**{field: middle})):
            high = middle
        else:
            low = middle + 1
    return way._replace(**{field: high})


def conditions(way: Rehearsal, kind: Kind) -> list[str]:
    """The conditions of the smallest failing rehearsal, in words."""
    found = []
    if way.warmup > SHORT:
        found.append(f"after {way.warmup} acting steps")
    elif kind == "learning" and (way.warmup or way.segments > 1 or way.rollouts > 1):
        found.append(WITH_MEMORY)
    if way.weights != 1.0:
        found.append(f"with weights {way.weights:g} times as large")
    if way.updates:
        found.append(f"after {way.updates} updates")
    if way.memory != 1.0:
        found.append(f"when memory has grown {way.memory:g} times as large")
    if way.repeated:
        found.append("where an observation is the same as the one before")
    if way.zeros:
        found.append("where an observation is all zeros")
    if way.bounds:
        found.append("where an observation is at its upper bound")
    if way.gradients and not way.updates:
        found.append("with gradients")
    if way.far_ids:
        found.append(f"with environment ids of {way.far_ids[0]} and more beside ids from 0")
    if way.rows > (3 if way.slices or way.ends else 2):
        found.append(f"with {way.rows} rows or more")
    if way.horizon > (3 if way.ends else 2):
        found.append(f"in segments of {way.horizon} steps or more")
    elif way.horizon == 1:  # only if no longer one fails
        found.append("in segments of one step")
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
