"""Causes of faults at an episode start: the flag, the row, the step, the part of the memory."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from engram.audit.adapters.base import PolicyAdapter
from engram.audit.context import AuditContext
from engram.audit.difference import max_difference, tolerance
from engram.audit.memory_parts import Change, MemoryPart, listed, memory_parts, noise_like
from engram.audit.scenario import Scenario, play

FLAGS = {"dones": (True, False), "truncateds": (False, True), "dones and truncateds at once": (True, True)}
DONES, TRUNCATEDS, BOTH = FLAGS
MAX_PLACES = 32  # a window with more places is not examined place by place
IGNORED = "memory is not cleared where an episode starts"
FADED = "memory is scaled down or mixed with the old one where an episode starts, not replaced"
LEARNED_ON = "in learning, steps after an episode start still see the episode before it"
RETURNS = "memory is cleared for the first step of an episode only: the old memory returns after it"
MIXED = "memory is cleared for the first step of an episode, but what is stored after it is mixed with the old memory"
FROM_OTHERS = "an episode starts from a memory that is computed from those of other rows"
IN_PART = "memory is cleared only in part where an episode starts"


class Explanation(NamedTuple):
    finding: str
    cause: str


def explain_acting(seen: Tensor, carried: Tensor, fresh: Tensor, starting: Tensor, bound: float) -> Explanation:
    """The finding and its cause. Outputs are [rows, steps from the start on, numbers]."""
    others = max_difference(seen[~starting], carried[~starting])
    if others > bound:
        return _explain_others(seen, carried, fresh, starting, bound)
    first = max_difference(seen[starting, 0], fresh[starting, 0])
    if max_difference(seen[starting, 0], carried[starting, 0]) <= bound:
        if max_difference(seen[starting], carried[starting]) <= bound:
            return Explanation(f"memory is not cleared at all; outputs are off by {first:.2g}", IGNORED)
        return Explanation(
            f"memory is cleared too late: the first observation of an episode meets old memory, off by {first:.2g}",
            "memory is cleared one step too late: the first observation of an episode meets the old memory",
        )
    if first <= bound:
        later = max_difference(seen[starting], fresh[starting])
        return Explanation(
            f"memory is cleared for the first step, but the steps after it are off by {later:.2g}",
            RETURNS,
        )
    value, distribution = (  # whether each is as a fresh policy gives it
        max_difference(seen[starting, 0][..., columns], fresh[starting, 0][..., columns]) <= bound
        for columns in (slice(0, 1), slice(1, None))
    )
    cause = IN_PART
    if value != distribution:
        kept, cleared = ("the action distribution", "the value") if value else ("the value", "the action distribution")
        cause = f"{kept} still reads memory from before an episode start; {cleared} does not"
    return Explanation(
        f"memory is cleared only in part, or to something else than a fresh policy's; off by {first:.2g}", cause
    )


def _explain_others(seen: Tensor, carried: Tensor, fresh: Tensor, starting: Tensor, bound: float) -> Explanation:
    """The explanation if rows change that do not start an episode."""
    if max_difference(seen[~starting], fresh[~starting]) <= bound:
        return Explanation(
            "when one row starts an episode, all rows are cleared",
            "an episode start in one row clears the memory of all rows",
        )
    moved = [row for row in range(len(seen)) if max_difference(seen[row], carried[row]) > bound]
    wrong = [row for row in moved if not starting[row]]
    rows = listed([str(row) for row in starting.nonzero().flatten().tolist()])
    if all(max_difference(seen[row], fresh[row]) <= bound for row in wrong):
        instead = "" if any(starting[row] for row in moved) else ", not its own"
        return Explanation(
            f"when rows {rows} start an episode, rows {listed([str(row) for row in wrong])} are cleared",
            f"an episode start clears the memory of another row{instead}",
        )
    others = max_difference(seen[~starting], carried[~starting])
    return Explanation(
        f"rows in the middle of their episode change by {others:.2g} when another one starts",
        "an episode start in one row changes the memory of other rows",
    )


def explain_learning(
    difference: Tensor, seen: Tensor, plain: Tensor, tails: list[Tensor], bound: float, own_row_only: bool
) -> Explanation:
    """The mistake, where row i starts an episode at step i. `own_row_only`: a start does not change other rows."""
    steps = len(difference)
    before = torch.ones(steps, steps).tril(-1).bool()
    row, step = divmod(int((difference > bound).flatten().nonzero()[0]), steps)
    first = f"first off in row {row} at step {step}, by {float(difference[row, step]):.2g}"
    if difference[before].max() > bound:
        by_one = all(
            max_difference(seen[i, i - 1 :], tails[i - 1][i, : steps - i + 1]) <= bound for i in range(1, steps)
        )
        cause = "memory is cleared one step too early" if by_one else "memory is cleared where no episode starts"
        return Explanation(
            f"a start also changes outputs before it, or in other rows; {first}",
            f"in learning, {cause if own_row_only else 'an episode start clears the memory of another row'}",
        )
    wrong = [i for i in range(steps) if difference[i].max() > bound]
    ignored = [i for i in wrong if max_difference(seen[i, i:], plain[i, i:]) <= bound]
    if ignored == wrong and len(wrong) < steps - 1:
        where = f"{IGNORED} at step {', '.join(map(str, wrong))} of {steps}"
        return Explanation(f"{where}; {first}", f"in learning, {where}")
    if ignored == wrong:
        return Explanation(
            f"memory is not cleared inside a segment, only at its first step if at all; {first}",
            "learning ignores episode starts inside a segment: memory is not cleared there",
        )
    late = all(max_difference(seen[i, i + 1 :], tails[i + 1][i, : steps - i - 1]) <= bound for i in range(1, steps - 1))
    if late:
        return Explanation(
            f"memory is cleared one step too late; {first}", "in learning, memory is cleared one step too late"
        )
    return Explanation(
        f"memory is cleared only in part, or to something else than a fresh one; {first}",
        LEARNED_ON,
    )


def joined(found: Mapping[str, Explanation]) -> str:
    """The finding for each kind of flag; once, if all are the same."""
    if len({each.finding for each in found.values()}) == 1 and len(found) == len(FLAGS):
        return next(iter(found.values())).finding
    return "; ".join(f"{name}: {each.finding}" for name, each in found.items())


def cause_of(found: Mapping[str, Explanation]) -> str:
    """The mechanism; which flag is missed, if only some are."""
    if not found:
        return ""
    where = {
        frozenset({DONES}): "at termination (dones)",
        frozenset({TRUNCATEDS}): "at truncation (truncateds)",
        frozenset({BOTH}): "where dones and truncateds are both set",
        frozenset({DONES, TRUNCATEDS}): "unless dones and truncateds are both set",
        frozenset({DONES, BOTH}): "at termination (dones)",
        frozenset({TRUNCATEDS, BOTH}): "at truncation (truncateds)",
    }.get(frozenset(found), "")
    cause = next(iter(found.values())).cause
    if not where:
        return cause
    late = "cleared too late" if "too late" in cause else "not cleared"
    return f"{'in learning, ' if 'learning' in cause else ''}memory is {late} {where}"


def fix_for(found: Mapping[str, Explanation]) -> str:
    if found.keys() == {BOTH}:
        return "Where both flags are set, an episode starts too: dones | truncateds, not dones ^ truncateds or a sum."
    missed = [name for name in found if name != BOTH]
    if len(missed) != 1:
        return ""
    other = TRUNCATEDS if missed == [DONES] else DONES
    return (
        f"Episodes also end by {missed[0]}: clear where td['dones'] | td['truncateds'], not only where {other} are set."
    )


@torch.no_grad()
def surviving_parts(audit: AuditContext) -> str:
    """Which parts of the stored memory still matter at an episode start, by changing one after the other."""
    adapter, ids = audit.adapter(), audit.ids
    play(adapter, audit.scenario(50, steps=3))
    parts = memory_parts(adapter, adapter.memory_of(ids))
    if not parts:
        return ""
    first = audit.fresh_start(audit.scenario(59, steps=1))
    expected = play(adapter.copy(), first).numbers
    survive = []
    for number, part in enumerate(parts):
        other = adapter.copy()
        part.change_in(other, ids, noise_like(number))
        if max_difference(play(other, first).numbers, expected) > tolerance(expected):
            survive.append(part.name)
    if not survive:
        return (
            "a second memory, which the policy keeps beside the one that is stored and cleared, is not cleared where "
            "an episode starts"
        )
    if len(survive) < len(parts):
        is_or_are = "is" if len(survive) == 1 else "are"
        late = _empty_after_a_start(audit, adapter, [part for part in parts if part.name in survive])
        when = (
            "cleared one step too late, after the first step of an episode"
            if late
            else "not cleared where an episode starts"
        )
        return f"{listed(survive)} {is_or_are} {when}"
    return _surviving_places(audit, adapter, parts, first, expected) or FADED


@torch.no_grad()
def depends_on_others(audit: AuditContext) -> str:
    """Whether what other rows have seen changes the first outputs of a row's episode."""
    scenario = audit.scenario(50, steps=4)
    other = scenario.with_other_past(slice(2, None), 3, audit.generator(56), audit.spec)
    flags = torch.zeros_like(scenario.dones)
    flags[1, 3] = True
    one, two = (play(audit.adapter(), each.with_starts(dones=flags)).numbers[1, 3] for each in (scenario, other))
    return FROM_OTHERS if max_difference(one, two) > tolerance(one) else ""


@torch.no_grad()
def mixed_with_old(audit: AuditContext) -> str:
    """Whether what is stored in an episode's first step depends on both, the step and the memory from before."""
    scenario = audit.scenario(50, steps=6)
    flags = torch.zeros_like(scenario.dones)
    flags[:, 4] = True
    seen = play(audit.adapter(), scenario.with_starts(dones=flags)).numbers[0, 5]
    without_first = play(audit.adapter(), replace(scenario, **_without_step(scenario, 4))).numbers[0, 4]
    return MIXED if max_difference(seen, without_first) > tolerance(seen) else ""


def _without_step(scenario: Scenario, step: int) -> dict[str, Tensor]:
    kept = [each for each in range(scenario.steps) if each != step]
    fields = ("observations", "dones", "truncateds", "noise")
    return {name: getattr(scenario, name)[:, kept] for name in fields}


def _empty_after_a_start(audit: AuditContext, adapter: PolicyAdapter, parts: list[MemoryPart]) -> bool:
    """Whether these parts are empty after the first step of an episode, though not after others."""
    ids, trial = audit.ids, adapter.copy()
    before = trial.memory_of(ids)
    play(trial, audit.fresh_start(audit.scenario(59, steps=1)))
    after = trial.memory_of(ids)
    return all(bool(part.numbers(before).any()) and not bool(part.numbers(after).any()) for part in parts)


def _surviving_places(
    audit: AuditContext, adapter: PolicyAdapter, parts: list[MemoryPart], first: Scenario, expected: Tensor
) -> str:
    """Which places of a window, [rows, places, size], still matter, if others do not."""
    ids = audit.ids
    memory = adapter.memory_of(ids)
    for part in parts:
        shape = part.value(memory).shape
        if part.tensors > 1 or len(shape) != 3 or not 1 < shape[1] <= MAX_PLACES:
            continue
        survive = []
        for place in range(shape[1]):
            other, noise = adapter.copy(), noise_like(place)

            def change(value: Tensor, place: int = place, noise: Change = noise) -> Tensor:
                changed = value.clone()
                changed[:, place] = noise(value[:, place])
                return changed

            part.change_in(other, ids, change)
            if max_difference(play(other, first).numbers, expected) > tolerance(expected):
                survive.append(str(place))
        if 0 < len(survive) < shape[1]:
            where = f"place{'s' * (len(survive) > 1)} {listed(survive)} of {shape[1]}"
            return f"{part.name} is not cleared at {where} where an episode starts"
    return ""
