"""The smallest rehearsal that still fails, and what it needs to fail, in words."""

from collections.abc import Callable, Iterator
from typing import Any

from engram.audit.checks.rehearsal import Kind, Rehearsal

CONDITIONS = ("segments", "rollouts", "warmup", "ends", "both_flags", "slices", "minibatches", "repeats")
WITH_MEMORY = "where a segment begins with memory from before it"
SHORT_WARMUP = 3  # steps before a segment that only fill the memory it begins with


def smallest(case: Rehearsal, fails: Callable[[Rehearsal], bool]) -> Rehearsal:
    """The simplest rehearsal that still fails: one condition after the other is dropped, then sizes are bisected."""
    case = next((small for small in _small(case) if small != case and fails(small)), case)
    blocks = [case._replace(far_ids=(first,)) for first in case.far_ids]
    case = next((block for block in blocks if fails(block)), case)
    steps = case.warmup + case.horizon * case.segments * case.rollouts
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
        candidate = case._replace(**simpler)
        if candidate != case and fails(candidate):
            case = candidate
    for field, low in (("rows", 2), ("horizon", 2), ("warmup", 1), ("segments", 2)):
        low = 1 if field == "rows" and not case.slices else low
        case = _bisected(case, field, low, fails)
    return case


def _small(case: Rehearsal) -> Iterator[Rehearsal]:
    """Rehearsals that take little time, each with few of the conditions."""
    plain = case._replace(**{name: Rehearsal._field_defaults[name] for name in CONDITIONS})
    plain = plain._replace(rows=min(case.rows, 4), horizon=min(case.horizon, 4))
    if case.far_ids or case.memory != 1.0 or case.repeated or case.zeros or case.bounds:
        return
    few, steps = min(case.rows, 8), case.warmup + case.horizon * case.segments * case.rollouts
    ended = plain._replace(rows=few, horizon=min(case.horizon, 6), ends=0.2)
    yield plain
    yield plain._replace(rows=case.rows)
    yield plain._replace(horizon=case.horizon)
    if case.ends:
        yield ended
        yield ended._replace(both_flags=case.both_flags)
    if case.minibatches != "all":
        yield plain._replace(minibatches=case.minibatches)
        yield ended._replace(minibatches=case.minibatches)
    if case.warmup or case.segments > 1 or case.rollouts > 1:
        yield plain._replace(segments=2)
        yield plain._replace(rollouts=2)
    if case.slices:
        yield ended._replace(ends=0.0, slices=True)
        yield plain._replace(rows=case.rows, slices=True)
    if case.repeats > 1:
        yield plain._replace(repeats=case.repeats)
        yield plain._replace(segments=2, repeats=case.repeats)
    if case.ends:
        yield ended._replace(rows=case.rows)
        yield ended._replace(horizon=case.horizon, rows=4)
    yield plain._replace(rows=2, horizon=3, warmup=steps)
    if case.ends:
        yield plain._replace(rows=2, horizon=3, warmup=steps, ends=0.05)


def _bisected(case: Rehearsal, field: str, low: int, fails: Callable[[Rehearsal], bool]) -> Rehearsal:
    high = getattr(case, field)
    while high // 2 > low and fails(case._replace(**{field: high // 2})):  # halves stay even: odd sizes may not fail
        high //= 2
    low = max(low, high // 2)
    while low < high:
        middle = (low + high) // 2
        if fails(case._replace(**{field: middle})):
            high = middle
        else:
            low = middle + 1
    return case._replace(**{field: high})


def conditions(case: Rehearsal, kind: Kind) -> list[str]:
    """The conditions of the smallest failing rehearsal, in words."""
    found = []
    if case.warmup > SHORT_WARMUP:
        found.append(f"after {case.warmup} acting steps")
    elif kind == "learning" and (case.warmup or case.segments > 1 or case.rollouts > 1):
        found.append(WITH_MEMORY)
    if case.weights != 1.0:
        found.append(f"with weights {case.weights:g} times as large")
    if case.updates:
        found.append(f"after {case.updates} updates")
    if case.memory != 1.0:
        found.append(f"when memory has grown {case.memory:g} times as large")
    if case.repeated:
        found.append("where an observation is the same as the one before")
    if case.zeros:
        found.append("where an observation is all zeros")
    if case.bounds:
        found.append("where an observation is at its upper bound")
    if case.gradients and not case.updates:
        found.append("with gradients")
    if case.far_ids:
        found.append(f"with environment ids of {case.far_ids[0]} and more beside ids from 0")
    if case.rows > (3 if case.slices or case.ends else 2):
        found.append(f"with {case.rows} rows or more")
    if case.horizon > (3 if case.ends else 2):
        found.append(f"in segments of {case.horizon} steps or more")
    elif case.horizon == 1:  # only if no longer one fails
        found.append("in segments of one step")
    if case.ends:
        both = " and sets dones and truncateds" if case.both_flags else ""
        found.append(
            f"where an episode starts inside a segment{both}"
            if kind == "learning"
            else f"where an episode starts{both}"
        )
    if case.slices:
        found.append("when batches arrive in uneven slices, out of order")
    if case.minibatches != "all":
        found.append("in minibatches of one row" if case.minibatches == "one" else "in minibatches of some rows")
    if case.repeats > 1:
        found.append("when the same segment is learned from again")
    if kind == "acting" and case.segments > 1:
        found.append("from the second segment of a rollout on")
    if kind == "acting" and case.rollouts > 1:
        found.append("from the second rollout on")
    return found
