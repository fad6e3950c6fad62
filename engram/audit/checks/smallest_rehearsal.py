"""The smallest rehearsal that still fails, and what it needs to fail, in words."""

from collections.abc import Callable, Iterator
from typing import Any

from engram.audit.checks.rehearsal import Kind, Rehearsal

SHORT = 3  # steps before a segment that only fill the memory it begins with


def smallest(rehearsal: Rehearsal, fails: Callable[[Rehearsal], bool]) -> Rehearsal:
    """The simplest rehearsal that still fails: one condition after the other is dropped, then sizes are bisected."""
    rehearsal = next((small for small in _small(rehearsal) if small != rehearsal and fails(small)), rehearsal)
    blocks = [rehearsal._replace(far_ids=(first,)) for first in rehearsal.far_ids]
    rehearsal = next((block for block in blocks if fails(block)), rehearsal)
    steps = rehearsal.horizon * rehearsal.segments * rehearsal.rollouts
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
        candidate = rehearsal._replace(**simpler)
        if candidate != rehearsal and fails(candidate):
            rehearsal = candidate
    for field, low in (("rows", 2), ("horizon", 2), ("warmup", 1), ("segments", 2)):
        low = 1 if field == "rows" and not rehearsal.slices else low
        rehearsal = _bisected(rehearsal, field, low, fails)
    return rehearsal


def _small(rehearsal: Rehearsal) -> Iterator[Rehearsal]:
    """Rehearsals that take little time, each with few of the conditions."""
    plain = Rehearsal(
        min(rehearsal.rows, 4),
        min(rehearsal.horizon, 4),
        weights=rehearsal.weights,
        updates=rehearsal.updates,
        memory=rehearsal.memory,
    )
    if rehearsal.far_ids or rehearsal.memory != 1.0:
        return
    few, steps = min(rehearsal.rows, 8), rehearsal.horizon * rehearsal.segments * rehearsal.rollouts
    ended = plain._replace(rows=few, horizon=min(rehearsal.horizon, 6), ends=0.2)
    yield plain
    yield plain._replace(rows=rehearsal.rows)
    yield plain._replace(horizon=rehearsal.horizon)
    if rehearsal.ends:
        yield ended
        yield ended._replace(both_flags=rehearsal.both_flags)
    if rehearsal.minibatches != "all":
        yield plain._replace(minibatches=rehearsal.minibatches)
        yield ended._replace(minibatches=rehearsal.minibatches)
    if rehearsal.segments > 1 or rehearsal.rollouts > 1:
        yield plain._replace(segments=2)
        yield plain._replace(rollouts=2)
    if rehearsal.slices:
        yield ended._replace(ends=0.0, slices=True)
        yield plain._replace(rows=rehearsal.rows, slices=True)
    if rehearsal.repeats > 1:
        yield plain._replace(repeats=rehearsal.repeats)
        yield plain._replace(segments=2, repeats=rehearsal.repeats)
    if rehearsal.ends:
        yield ended._replace(rows=rehearsal.rows)
        yield ended._replace(horizon=rehearsal.horizon, rows=4)
    yield plain._replace(rows=2, horizon=3, warmup=steps)
    if rehearsal.ends:
        yield plain._replace(rows=2, horizon=3, warmup=steps, ends=0.05)


def _bisected(rehearsal: Rehearsal, field: str, low: int, fails: Callable[[Rehearsal], bool]) -> Rehearsal:
    high = getattr(rehearsal, field)
    while low < high:
        middle = (low + high) // 2
        if fails(rehearsal._replace(**{field: middle})):
            high = middle
        else:
            low = middle + 1
    return rehearsal._replace(**{field: high})


def conditions(rehearsal: Rehearsal, kind: Kind) -> list[str]:
    """What the smallest failing rehearsal needs, in words."""
    found = []
    if rehearsal.warmup > SHORT:
        found.append(f"after {rehearsal.warmup} acting steps")
    elif kind == "learning" and (rehearsal.warmup or rehearsal.segments > 1 or rehearsal.rollouts > 1):
        found.append("where a segment begins with memory from before it")
    if rehearsal.weights != 1.0:
        found.append(f"with weights {rehearsal.weights:g} times as large")
    if rehearsal.updates:
        found.append(f"after {rehearsal.updates} updates")
    if rehearsal.memory != 1.0:
        found.append(f"when memory has grown {rehearsal.memory:g} times as large")
    if rehearsal.far_ids:
        found.append(f"with environment ids of {rehearsal.far_ids[0]} and more beside ids from 0")
    if rehearsal.rows > (3 if rehearsal.slices or rehearsal.ends else 2):
        found.append(f"with {rehearsal.rows} rows or more")
    if rehearsal.horizon > (3 if rehearsal.ends else 2):
        found.append(f"in segments of {rehearsal.horizon} steps or more")
    elif rehearsal.horizon == 1:  # only if no longer one fails
        found.append("in segments of one step")
    if rehearsal.ends:
        both = " and sets dones and truncateds" if rehearsal.both_flags else ""
        found.append(
            f"where an episode starts inside a segment{both}"
            if kind == "learning"
            else f"where an episode starts{both}"
        )
    if rehearsal.slices:
        found.append("when batches arrive in uneven slices, out of order")
    if rehearsal.minibatches != "all":
        found.append("in minibatches of one row" if rehearsal.minibatches == "one" else "in minibatches of some rows")
    if rehearsal.repeats > 1:
        found.append("when the same segment is learned from again")
    if kind == "acting" and rehearsal.segments > 1:
        found.append("from the second segment of a rollout on")
    if kind == "acting" and rehearsal.rollouts > 1:
        found.append("from the second rollout on")
    return found
