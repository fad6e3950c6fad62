"""Causes of faults at an episode start: which rows it clears, which get another memory, and which parts are kept."""

# B rows

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engram.audit.adapters.base import PolicyAdapter, Segment
from engram.audit.checks.which_past import describe_past, lone_acting
from engram.audit.context import AuditContext
from engram.audit.difference import abs_difference, max_difference, tolerance
from engram.audit.memory_parts import listed, memory_parts, noise_like
from engram.audit.scenario import Scenario, play, random_observations

BEFORE, AFTER = 4, 3  # in a scenario: steps before the episode start, and steps from there on
ALL_CLEARED = "an episode start in one row clears the memory of all rows"
BY_ROW_0 = "all rows are cleared by the flag of row 0, and by no other: the flags lose a dimension"
OTHERS_CHANGE = "an episode start in one row changes the memory of other rows"
POSITION = "in learning, outputs depend on the position in the segment, also after an episode start"
OTHER_START = "in learning, an episode inside a segment begins from another state than the first of a segment"
START = 3  # in a segment: the step at which episodes start in all rows


class Effect(NamedTuple):
    """The effect of a start in one row on every row, [B]. In a changed one, memory is neither cleared nor kept."""

    cleared: Tensor
    changed: Tensor
    past: str  # the memory that the changed rows continue with, in words


@torch.no_grad()
def start_cause(audit: AuditContext, learning: bool = False) -> str:
    """The fault of episode starts in single rows, in acting or learning; empty if each clears its own row alone."""
    scenario = audit.scenario(50, steps=BEFORE + AFTER)
    adapter = audit.adapter()
    actions = play(adapter, scenario).actions

    def outputs(flagged: Scenario) -> Tensor:
        if learning:
            return audit.adapter().learn(flagged.segment(actions)).numbers()[..., :-1]
        return play(audit.adapter(), flagged).numbers

    effects = [_effect(audit, scenario, row, outputs) for row in range(audit.rows)]
    cause = _in_words(effects)
    return f"in learning, {cause}" if cause and learning else cause


def _effect(audit: AuditContext, scenario: Scenario, row: int, outputs: Callable[[Scenario], Tensor]) -> Effect:
    """The effect of a start in this row: are rows as without it (carried), as after a start (fresh), or neither?"""
    flags = torch.zeros_like(scenario.dones)
    flags[row, BEFORE] = True
    flagged = scenario.with_starts(dones=flags)
    seen, carried = outputs(flagged), outputs(scenario.with_starts())
    width = seen.shape[-1]
    fresh = play(audit.adapter(), audit.fresh_start(scenario.part(BEFORE))).numbers[..., :width]
    bound = tolerance(seen)
    as_carried = (abs_difference(seen, carried).amax((1, 2))) <= bound
    as_fresh = abs_difference(seen[:, BEFORE:], fresh).amax((1, 2)) <= bound
    as_fresh &= abs_difference(seen[:, :BEFORE], carried[:, :BEFORE]).amax((1, 2)) <= bound
    changed = ~as_carried & ~as_fresh
    past = ""
    if bool(changed.any()):
        starting = torch.zeros_like(changed)
        starting[row] = True
        expected = torch.where(starting.view(-1, 1, 1), torch.cat([carried[:, :BEFORE], fresh], 1), carried)
        wrong = abs_difference(seen, expected).amax(-1) > bound
        past = describe_past(lone_acting(audit.adapter()), flagged, seen, wrong, bound)
    return Effect(as_fresh, changed, past)


def _in_words(effects: list[Effect]) -> str:
    """The fault that the effects show; `effects[i]` are those of a start in row i."""
    rows = len(effects)
    cleared = [set(effect.cleared.nonzero().flatten().tolist()) for effect in effects]
    change_others = [row for row, effect in enumerate(effects) if any(each != row for each in _changed(effect))]
    if change_others:
        row = next((each for each in change_others if effects[each].past), change_others[0])
        past = effects[row].past
        return f"where row {row} starts an episode, {past}" if past else OTHERS_CHANGE
    if any(_changed(effect) for effect in effects):
        return ""
    if all(len(each) == rows for each in cleared):
        return ALL_CLEARED
    if len(cleared[0]) == rows and not any(cleared[1:]):
        return BY_ROW_0
    clear_others = [row for row, each in enumerate(cleared) if each - {row}]
    if not clear_others:
        return ""
    row = clear_others[len(clear_others) // 2]  # as an example
    which = listed([str(each) for each in sorted(cleared[row])])
    instead = "" if any(each in cleared[each] for each in clear_others) else ", not its own"
    return f"an episode start clears the memory of another row{instead}: one in row {row} clears row {which}"


def _changed(effect: Effect) -> list[int]:
    return effect.changed.nonzero().flatten().tolist()


@torch.no_grad()
def learning_start_cause(audit: AuditContext, adapter: PolicyAdapter, segment: Segment, memory: Any) -> str:
    """The cause: the parts of the memory by which the past affects outputs after a start. Empty if unknown."""
    flags = torch.zeros_like(segment.dones)
    flags[:, START] = True
    flagged = replace(segment, dones=flags)
    observations = segment.observations.clone()
    other = random_observations(audit.spec, segment.shape, audit.generator(61))
    observations[:, :START] = other[:, :START]
    other_memory = memory
    for number, part in enumerate(memory_parts(adapter, memory)):
        other_memory = part.changed(other_memory, noise_like(number))
    seen = adapter.learn(flagged, memory).numbers()[:, START:]
    after = adapter.learn(replace(flagged, observations=observations), other_memory).numbers()[:, START:]
    if max_difference(seen, after) > tolerance(seen):
        return _parts_kept(audit)
    observations = segment.observations.clone()
    observations[:] = observations[:, :1]
    repeated = replace(segment, observations=observations, dones=torch.ones_like(segment.dones))
    later = adapter.learn(repeated, memory).numbers()[:, 1:]
    return POSITION if max_difference(later, later[:, :1].expand_as(later)) > tolerance(later) else OTHER_START


def _parts_kept(audit: AuditContext) -> str:
    """The parts of memory that a start does not clear: with the others at zero, acting gives what learning gives."""
    scenario, ids = audit.scenario(62, steps=2), audit.ids
    adapter = audit.adapter()
    played = play(adapter, scenario)
    adapter = audit.adapter()
    play(adapter, scenario.part(0, 1))
    memory = adapter.memory_of(ids)
    parts = memory_parts(adapter, memory)
    flags = torch.zeros_like(scenario.dones)
    flags[:, 1] = True
    learned = audit.adapter().learn(scenario.with_starts(flags).segment(played.actions)).value[:, 1:]
    if len(parts) < 2:
        return ""
    for kept in [[part] for part in parts] + [[each for each in parts if each is not part] for part in parts]:
        trial = adapter.copy()
        for part in parts:
            if part not in kept:
                part.change_in(trial, ids, torch.zeros_like)
        if max_difference(play(trial, scenario.part(1)).value, learned) <= tolerance(learned):
            names = listed([part.name for part in kept])
            return f"in learning, {names} {'is' if len(kept) == 1 else 'are'} not cleared where an episode starts"
    return ""
