"""Which past the rows of a rehearsal have that differ: in acting, from a row alone; in learning, from acting."""

# B rows, T steps

from itertools import pairwise

import torch

from engram.audit.checks.rehearsal import (
    Rehearsal,
    ids_of,
    learned,
    minibatches_of,
    order_of,
    prepared,
    reference_outputs,
    scenario_of,
)
from engram.audit.checks.smallest_rehearsal import SHORT
from engram.audit.checks.which_past import NAMED_ROWS, by_acting, by_learning, rows_read
from engram.audit.context import AuditContext
from engram.audit.difference import abs_difference, tolerance
from engram.audit.scenario import Scenario, play


@torch.no_grad()
def acting_past(audit: AuditContext, way: Rehearsal) -> str:
    """What past the rows that act differently from the reference have instead of their own; nothing if unknown."""
    adapter, scenario = prepared(audit, way), scenario_of(audit, way, 0)
    alone, references, numbers = adapter.copy(), {}, []
    for row in sorted({*range(min(way.rows, NAMED_ROWS)), way.rows - 1}):
        references[row] = adapter.copy()
    for first, last in pairwise(_cuts(way, scenario)):
        part = scenario.part(first, last)
        numbers.append(play(adapter, part, order_of(audit, way, part, 0), ids_of(way)).numbers)
    seen = torch.cat(numbers, 1)
    off, bound = torch.zeros(way.rows, scenario.steps, dtype=torch.bool), tolerance(seen)
    for row, reference in references.items():
        off[row] = abs_difference(seen[row], reference_outputs(reference, scenario, row)).amax(-1) > bound
    return rows_read(by_acting(alone), scenario, seen, off, bound)


@torch.no_grad()
def learning_past(audit: AuditContext, way: Rehearsal) -> str:
    """What past learning takes for the rows in which it differs from acting; nothing if unknown."""
    rows, horizon = max(way.rows, NAMED_ROWS), max(way.horizon, NAMED_ROWS)
    more = way._replace(rows=rows, horizon=horizon, warmup=way.warmup or SHORT, segments=1)
    return next((past for each in (more, way) if (past := _learning_past(audit, each))), "")


@torch.no_grad()
def past_by_learning(audit: AuditContext) -> str:
    """The past that acting has in a simple segment, taking learning for right; nothing if unknown."""
    scenario = audit.scenario(76, rows=4, steps=6)
    played, learner = play(audit.adapter(), scenario), audit.adapter()
    learned_numbers = learner.learn(scenario.segment(played.actions)).numbers()[..., :-1]
    seen, bound = played.numbers[..., : learned_numbers.shape[-1]], tolerance(learned_numbers)
    off = abs_difference(seen, learned_numbers).amax(-1) > bound
    off[:, :2] = False  # there, the memory of the step before is none
    return rows_read(by_learning(learner, played.actions), scenario, seen, off, bound)


def _learning_past(audit: AuditContext, way: Rehearsal) -> str:
    adapter = prepared(audit, way)
    learner, alone, scenario, ids = adapter.copy(), adapter.copy(), scenario_of(audit, way, 0), ids_of(way)
    for first, last in pairwise(_cuts(way, scenario)):
        memory = adapter.memory_of(ids) if first else None
        part = scenario.part(first, last)
        played = play(adapter, part, order_of(audit, way, part, 0), ids)
        if first == 0 and way.warmup:
            continue
        segment, bound = part.segment(played.actions), tolerance(played.value, played.log_prob)
        seen, off = torch.zeros(0), torch.zeros_like(played.value, dtype=torch.bool)
        for rows in minibatches_of(learner, way):
            with torch.set_grad_enabled(way.gradients):
                output = learned(learner, segment, memory, rows, way.rows)
            numbers = output.numbers()[..., :-1].detach()
            seen = seen if len(seen) else torch.zeros(way.rows, part.steps, numbers.shape[-1], dtype=numbers.dtype)
            seen[rows] = numbers
            apart = [
                abs_difference(getattr(output, name).detach(), getattr(played, name)[rows])
                for name in ("value", "log_prob")
            ]
            off[rows] |= torch.maximum(*apart) > bound
        if bool(off.any()):
            return rows_read(by_acting(alone), scenario, seen, off, bound, first)
    return ""


def _cuts(way: Rehearsal, scenario: Scenario) -> list[int]:
    """Where the acting steps before the segments end, and each segment."""
    return sorted({0, *range(way.warmup, scenario.steps, way.horizon), scenario.steps})
