"""Rows that pause while others act, and memory that is lost after a number of calls."""

from itertools import pairwise

import torch

from engram.audit.context import AuditContext
from engram.audit.difference import max_difference, tolerance
from engram.audit.scenario import play

COLLIDE = "environment ids collide: rows with ids of {} and more share the memory of others"
NOT_STORED = "rows with environment ids of {} and more have no memory: what they write is not stored"
IDLE, OTHERS = 60, 4  # calls without the idle rows, and the other rows in each


@torch.no_grad()
def cleared_by_calls(audit: AuditContext, calls: int) -> str:
    """Whether memory of all rows is gone at some calls, though no episode starts."""
    steps = calls + calls // 2 + 2
    scenario = audit.scenario(80, rows=2, steps=steps)
    carried = play(audit.adapter(), scenario).numbers
    empty, cleared = audit.adapter(), []
    for step in range(2, steps):
        empty.reset()
        fresh = play(empty, scenario.part(step, step + 1)).numbers[:, 0]
        if max_difference(fresh, carried[:, step]) <= tolerance(fresh):
            cleared.append(step)
    if not cleared or len(cleared) > steps // 2:
        return ""
    if len(cleared) > 1 and len({later - one for one, later in pairwise(cleared)}) == 1:
        return f"the memory of all rows is cleared every {cleared[1] - cleared[0]} calls, though no episode starts"
    return f"the memory of all rows is cleared after {cleared[0]} calls, though no episode starts"


def idle_rows(audit: AuditContext) -> float:
    """The difference between rows that paused while many others acted, and rows that did not pause."""
    scenario, after = audit.scenario(22, rows=2, steps=3), audit.scenario(23, rows=2, steps=2)
    adapter = audit.adapter()
    play(adapter, scenario)
    expected = play(adapter.copy(), after).numbers
    others = audit.scenario(24, rows=OTHERS, steps=1)
    try:
        for call in range(IDLE):
            first = 2 + call * OTHERS
            play(adapter, others, ids=range(first, first + OTHERS))
    except Exception:  # a table may refuse so many ids
        return 0.0
    return max_difference(play(adapter, after).numbers, expected)


@torch.no_grad()
def idle_cause(audit: AuditContext) -> str:
    """The cause if a row that pauses loses its memory: number of calls, colliding ids, or a store that drops rows."""
    if cause := cleared_by_calls(audit, 2 * IDLE):
        return cause
    scenario = audit.scenario(22, rows=2, steps=3)
    fresh = play(audit.adapter(), audit.fresh_start(scenario)).numbers
    called = audit.adapter()
    play(called, audit.scenario(24, rows=2, steps=IDLE))
    if max_difference(play(called, audit.fresh_start(scenario)).numbers, fresh) > tolerance(fresh):
        return f"after {IDLE} calls, memory is kept no longer, or differs: outputs depend on the number of calls"
    after, others = audit.scenario(23, rows=2, steps=2), audit.scenario(24, rows=1, steps=1)
    adapter = audit.adapter()
    play(adapter, scenario)
    expected = play(adapter.copy(), after).numbers
    for other in range(2, 2 + IDLE * OTHERS):
        trial = adapter.copy()
        play(trial, others, ids=[other])
        if max_difference(play(trial, after).numbers, expected) > tolerance(expected):
            return COLLIDE.format(other)
    return "a row loses its memory while many others act: what is kept is dropped for them"


@torch.no_grad()
def far_ids_cause(audit: AuditContext, first: int) -> str:
    """Whether rows with ids from `first` on, which act wrongly, have no memory or share that of others."""
    ids = range(first, first + 2)
    past, after = (audit.scenario(seed, rows=2, steps=3).with_starts() for seed in (23, 24))
    adapter = audit.adapter()
    play(adapter, past, ids=ids)
    remembered, fresh = (play(each, after, ids=ids).numbers for each in (adapter, audit.adapter()))
    return (NOT_STORED if max_difference(remembered, fresh) <= tolerance(fresh) else COLLIDE).format(first)
