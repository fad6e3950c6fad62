"""By how much memory is scaled where acting stores it, or where learning begins from it."""

from collections.abc import Callable

import torch
from torch import Tensor

from engram.audit.context import AuditContext
from engram.audit.difference import max_difference, tolerance
from engram.audit.scenario import play

TRIES = 12
NEAR = 10  # times the tolerance: what is left after solving for a factor


@torch.no_grad()
def scaled_when_stored(audit: AuditContext) -> str:
    """Whether acting goes on from a multiple of the memory that learning carries from step to step."""
    scenario, adapter, ids = audit.scenario(76, steps=2), audit.adapter(), list(range(audit.rows))
    first = play(adapter, scenario.part(0, 1))
    learned = audit.adapter().learn(scenario.segment(first.actions.repeat_interleave(2, 1))).value[:, 1]

    def next_value(factor: float) -> Tensor:
        trial = adapter.copy()
        trial.change_memory(ids, lambda part: part * factor if part.is_floating_point() else part)
        return play(trial, scenario.part(1)).value[:, 0]

    found = _solve(next_value, learned)
    return "memory is scaled when stored: acting goes on from a multiple of it" if found else ""


@torch.no_grad()
def scaled_when_read(audit: AuditContext) -> str:
    """Whether learning begins from a multiple of the memory that it is given."""
    scenario, adapter, ids = audit.scenario(76, steps=5), audit.adapter(), list(range(audit.rows))
    if not adapter.learns_row_subsets:
        return ""
    play(adapter, scenario.part(0, 3))
    memory = adapter.memory_of(ids)
    after = play(adapter, scenario.part(3))
    segment = scenario.part(3).segment(after.actions)

    def first_value(factor: float) -> Tensor:
        changed = audit.adapter()
        changed.reset()
        play(changed, scenario.part(0, 3))
        changed.change_memory(ids, lambda part: part * factor if part.is_floating_point() else part)
        return changed.learn(segment, changed.memory_of(ids)).value[:, 0]

    found = _solve(first_value, after.value[:, 0]) if memory is not None else None
    return f"learning reads {1 / found:.3g} times the memory stored for a segment" if found else ""


def _solve(outputs: Callable[[float], Tensor], wanted: Tensor) -> float | None:
    """The factor that gives these outputs, by the secant method for the first row; None if it does not for all."""
    one, other = 1.0, 1.1
    off, off_other = (float(outputs(each)[0] - wanted[0]) for each in (one, other))
    for _ in range(TRIES):
        if abs(off_other - off) < 1e-12:
            break
        one, other, off = other, other - off_other * (other - one) / (off_other - off), off_other
        off_other = float(outputs(other)[0] - wanted[0])
    found = outputs(other)
    right = max_difference(found, wanted) <= NEAR * tolerance(wanted)
    return other if right and abs(other - 1) > 1e-3 and other != 0 else None
