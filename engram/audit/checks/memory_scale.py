"""By how much memory is scaled where acting stores it, or where learning begins from it."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from engram.audit.adapters.base import PolicyAdapter
from engram.audit.context import AuditContext
from engram.audit.difference import max_difference, tolerance
from engram.audit.memory_parts import MemoryPart, memory_parts
from engram.audit.scenario import play

TRIES = 12
NOTHING = 1e-3  # a factor that means none of it
NEAR = 10  # times the tolerance: what is left after solving for a factor


@torch.no_grad()
def scaled_when_stored(audit: AuditContext) -> str:
    """Whether acting continues from a multiple of the memory that learning carries from step to step."""
    scenario, adapter, ids = audit.scenario(76, steps=2), audit.adapter(), list(range(audit.rows))
    first = play(adapter, scenario.part(0, 1))
    learned = audit.adapter().learn(scenario.segment(first.actions.repeat_interleave(2, 1))).value[:, 1]

    def next_value(part: MemoryPart | None, factor: float) -> Tensor:
        trial = adapter.copy()
        _scale(trial, ids, part, factor)
        return play(trial, scenario.part(1)).value[:, 0]

    name, factor = _scaled_part(adapter, ids, next_value, learned)
    if name and abs(factor) < NOTHING:
        return f"learning does not carry {name} from one step to the next, as acting does"
    return f"{name} is scaled when stored: acting continues from a multiple of it" if name else ""


@torch.no_grad()
def scaled_when_read(audit: AuditContext) -> str:
    """Whether learning begins from a multiple of the memory that it is given."""
    scenario, adapter, ids = audit.scenario(76, steps=5), audit.adapter(), list(range(audit.rows))
    if not adapter.learns_row_subsets:
        return ""
    play(adapter, scenario.part(0, 3))
    after = play(adapter, scenario.part(3))
    played, segment = scenario.part(0, 3), scenario.part(3).segment(after.actions)

    def first_value(part: MemoryPart | None, factor: float) -> Tensor:
        changed = audit.adapter()
        play(changed, played)
        _scale(changed, ids, part, factor)
        return changed.learn(segment, changed.memory_of(ids)).value[:, 0]

    before = audit.adapter()
    play(before, played)
    name, factor = _scaled_part(before, ids, first_value, after.value[:, 0])
    if name and abs(factor) < NOTHING:
        return f"acting does not read the {name} stored, as learning does"
    return f"learning reads {1 / factor:.3g} times the {name} stored for a segment" if name else ""


def _scale(adapter: PolicyAdapter, ids: list[int], part: MemoryPart | None, factor: float) -> None:
    """Multiply a part of the memory of these rows, or all of it."""
    if part is not None:
        part.change_in(adapter, ids, lambda value: value * factor)
    else:
        adapter.change_memory(ids, lambda value: value * factor if value.is_floating_point() else value)


def _scaled_part(
    adapter: PolicyAdapter, ids: list[int], outputs: Callable[[MemoryPart | None, float], Tensor], wanted: Tensor
) -> tuple[str, float]:
    """The name of what is scaled, and the factor that makes it right; an empty name if no factor does."""
    parts = memory_parts(adapter, adapter.memory_of(ids))
    for part in (None, *(parts if len(parts) > 1 else ())):
        if (found := _solve(partial(outputs, part), wanted)) is not None:
            return "memory" if part is None else part.name, found
    return "", 1.0


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
