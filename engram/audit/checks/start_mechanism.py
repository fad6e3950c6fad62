"""What an episode start in one row does to each of the rows: which it clears, and which get another memory."""

# B rows, T steps, K numbers

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from engram.audit.checks.which_past import by_acting, rows_read
from engram.audit.context import AuditContext
from engram.audit.difference import abs_difference, tolerance
from engram.audit.memory_parts import listed
from engram.audit.scenario import Scenario, play

BEFORE, AFTER = 4, 3  # steps before an episode starts, and from there on
ALL_CLEARED = "an episode start in one row clears the memory of all rows"
BY_ROW_0 = "all rows are cleared by the flag of row 0, and by no other: the flags lose a dimension"
OTHERS_CHANGE = "an episode start in one row changes the memory of other rows"


class Effect(NamedTuple):
    """What a start in one row does to the rows, [B]: it clears them, or gives them a memory that is neither."""

    cleared: Tensor
    changed: Tensor
    words: str  # what the changed rows do instead


@torch.no_grad()
def start_cause(audit: AuditContext, learning: bool = False) -> str:
    """What starts in single rows do wrong, in acting or learning; nothing if each clears its own row alone."""
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
    flags = torch.zeros_like(scenario.dones)
    flags[row, BEFORE] = True
    every = torch.zeros_like(flags)
    every[:, BEFORE] = True
    flagged = scenario.with_starts(dones=flags)
    seen, carried = outputs(flagged), outputs(scenario.with_starts())
    width = seen.shape[-1]
    fresh = play(audit.adapter(), audit.fresh_start(scenario.part(BEFORE))).numbers[..., :width]
    bound = tolerance(seen)
    as_carried = (abs_difference(seen, carried).amax((1, 2))) <= bound
    as_fresh = abs_difference(seen[:, BEFORE:], fresh).amax((1, 2)) <= bound
    as_fresh &= abs_difference(seen[:, :BEFORE], carried[:, :BEFORE]).amax((1, 2)) <= bound
    changed = ~as_carried & ~as_fresh
    words = ""
    if bool(changed.any()):
        own = torch.zeros_like(changed)
        own[row] = True
        expected = torch.where(own.view(-1, 1, 1), torch.cat([carried[:, :BEFORE], fresh], 1), carried)
        off = abs_difference(seen, expected).amax(-1) > bound
        words = rows_read(by_acting(audit.adapter()), flagged, seen, off, bound)
    return Effect(as_fresh, changed, words)


def _in_words(effects: list[Effect]) -> str:
    rows = len(effects)
    cleared = [set(effect.cleared.nonzero().flatten().tolist()) for effect in effects]
    others = [row for row, effect in enumerate(effects) if any(each != row for each in _changed(effect))]
    if others:
        row = next((each for each in others if effects[each].words), others[0])
        words = effects[row].words
        return f"where row {row} starts an episode, {words}" if words else OTHERS_CHANGE
    if any(_changed(effect) for effect in effects):
        return ""
    if all(len(each) == rows for each in cleared):
        return ALL_CLEARED
    if len(cleared[0]) == rows and not any(cleared[1:]):
        return BY_ROW_0
    wrong = [row for row, each in enumerate(cleared) if each - {row}]
    if not wrong:
        return ""
    named = wrong[len(wrong) // 2]
    which = listed([str(each) for each in sorted(cleared[named])])
    instead = "" if any(row in cleared[row] for row in wrong) else ", not its own"
    return f"an episode start clears the memory of another row{instead}: one in row {named} clears row {which}"


def _changed(effect: Effect) -> list[int]:
    return effect.changed.nonzero().flatten().tolist()
