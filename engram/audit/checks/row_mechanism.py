"""Causes of mixed rows: experiments that name the mechanism."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from engram.audit.adapters.row_state import leaves
from engram.audit.context import AuditContext
from engram.audit.difference import abs_difference, max_difference, tolerance
from engram.audit.result import attempt
from engram.audit.scenario import Scenario, play, random_observations

FAR = 900  # ids of environments that are not in the scenario
IDLE, OTHERS = 60, 4  # calls without the idle rows, and the other rows in each
LEAKS = 4  # steps in which one row's observations could reach another
ELSEWHERE = (
    "a row's memory is stored as that of other rows: a view or reshape in place of a transpose of rows and layers"
)
STARTS = "an episode start in one row changes the outputs of other rows"
CALLS = "outputs depend on the number of calls: something is counted by calls, not by the steps of a row"
ALONE = "a batch of one row acts differently from larger ones: its memory is not kept, or a squeeze() drops the row"
NEW_ROWS = "a row that is seen for the first time begins with what other rows remember"
BY_BATCH = "memory is kept by a row's position in the batch, not by its environment id"


def acting_cause(audit: AuditContext, scenario: Scenario) -> str:
    """The cause if rows affect one another in acting: in whole batches or only in others, all rows or some."""
    leaks, bound = _leaks_in_whole_batches(audit, scenario.part(0, LEAKS).with_starts())
    own, others = leaks.diagonal() > bound, ~torch.eye(audit.rows, dtype=torch.bool)
    if 0 < int(own.sum()) < audit.rows:
        lost = (~own).nonzero().flatten().tolist()
        last = ", the last of the batch," if lost == [audit.rows - 1] else ""
        return f"the memory of row {', '.join(map(str, lost))}{last} is not kept"
    if not bool((leaks > bound)[others].any()):
        if attempt(_stored_elsewhere, audit):
            return ELSEWHERE
        causes = (
            (STARTS, _starts_leak),
            (BY_BATCH, _goes_on_in_other_rows),
            (CALLS, _counts_calls),
            (ALONE, _differs_alone),
            (NEW_ROWS, _new_rows_leak),
        )
        return next((cause for cause, holds in causes if holds(audit)), BY_BATCH)
    return _pattern(audit, (leaks > bound) & others, others)


def _leaks_in_whole_batches(audit: AuditContext, scenario: Scenario) -> tuple[Tensor, float]:
    """The change of the last outputs of a row by a different past of another, [from row, to row], and the bound."""
    base, leaks = play(audit.adapter(), scenario).numbers[:, -1], torch.zeros(audit.rows, audit.rows)
    for row in range(audit.rows):
        other = scenario.with_other_past(row, scenario.steps - 1, audit.generator(16 + row), audit.spec)
        leaks[row] = abs_difference(play(audit.adapter(), other).numbers[:, -1], base).amax(1)
    return leaks, tolerance(base)


def _starts_leak(audit: AuditContext) -> bool:
    """Whether an episode start in one row changes the outputs of others, in whole batches."""
    scenario = audit.scenario(19, steps=3)
    flags = torch.zeros_like(scenario.dones)
    flags[0, 1] = True
    one, other = (play(audit.adapter(), each).numbers[1:] for each in (scenario, scenario.with_starts(dones=flags)))
    return max_difference(one, other) > tolerance(one)


@torch.no_grad()
def _stored_elsewhere(audit: AuditContext) -> str:
    """Whether one row's observations are stored in the memory of others, though outputs in whole batches are right."""
    scenario = audit.scenario(19, steps=1)
    other = scenario.with_other_past(1, None, audit.generator(16), audit.spec)
    stored = []
    for each in (scenario, other):
        adapter = audit.adapter()
        play(adapter, each)
        rows = [leaves(adapter.memory_of([row])) for row in range(audit.rows)]
        stored.append(torch.stack([torch.cat([part.float().flatten() for part in row]) for row in rows]))
    one, changed = stored
    others = torch.arange(audit.rows) != 1
    return ELSEWHERE if max_difference(one[others], changed[others]) > tolerance(one) else ""


def _counts_calls(audit: AuditContext) -> bool:
    """Whether calls for other environments change outputs, regardless of their observations."""
    scenario, outputs = audit.scenario(19, steps=3), []
    for salt in (None, 20, 21):
        adapter, seen = audit.adapter(), []
        for step in range(scenario.steps):
            if salt is not None:
                play(adapter, audit.scenario(salt + 100 * step, rows=2, steps=1), ids=range(FAR, FAR + 2))
            seen.append(adapter.act(scenario.batch(slice(0, audit.rows), step)).numbers())
        outputs.append(torch.stack(seen, 1))
    alone, one, other = outputs
    bound = tolerance(alone)
    return max_difference(alone, one) > bound and max_difference(one, other) <= bound


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
            return f"environment ids collide: rows with ids of {other} and more share the memory of others"
    return "a row loses its memory while many others act: what is kept is dropped for them"


def _differs_alone(audit: AuditContext) -> bool:
    """Whether batches of one row differ from whole ones, and those of two rows do not."""
    scenario = audit.scenario(19, steps=3)
    whole, off = play(audit.adapter(), scenario).numbers, {}
    for size in (1, 2):
        order = [
            (slice(row, min(row + size, audit.rows)), step)
            for step in range(scenario.steps)
            for row in range(0, audit.rows, size)
        ]
        off[size] = max_difference(play(audit.adapter(), scenario, order).numbers, whole) > tolerance(whole)
    return off[1] and not off[2]


def _goes_on_in_other_rows(audit: AuditContext) -> bool:
    """Whether two rows continue with the memory of two others that acted at their position in the batch."""
    first, between, last = (audit.scenario(salt, rows=2, steps=2) for salt in (19, 20, 21))
    seen = []
    for ids in ((2, 3), (0, 1)):
        adapter = audit.adapter()
        play(adapter, first)
        play(adapter, between, ids=ids)
        seen.append(play(adapter, last).numbers)
    return max_difference(*seen) <= tolerance(seen[0])


def _new_rows_leak(audit: AuditContext) -> bool:
    """Whether the observations of other rows change the first outputs of a new row."""
    outputs, first = [], audit.scenario(19, rows=2, steps=1)
    for salt in (20, 21):
        adapter = audit.adapter()
        play(adapter, audit.scenario(salt, rows=2, steps=3))
        outputs.append(play(adapter, first, ids=(2, 3)).numbers)
    return max_difference(*outputs) > tolerance(outputs[0])


def learning_cause(audit: AuditContext, leaks: Tensor) -> str:
    others = ~torch.eye(audit.rows, dtype=torch.bool)
    segment, adapter = audit.segment(17, steps=1), audit.adapter()
    observations = segment.observations.clone()
    observations[0] = random_observations(audit.spec, (1, 1), audit.generator(18))[0]
    changed = adapter.learn(replace(segment, observations=observations)).numbers()
    base = adapter.learn(segment).numbers()
    if bool(leaks.diagonal().all()) and (by := _by_all(audit)):
        return by
    if max_difference(changed[1:], base[1:]) <= tolerance(base) and bool(leaks.diagonal().all()):
        return "in learning, rows and steps are mixed up: a reshape in place of a transpose of [B, T]"
    if not bool(leaks.diagonal().all()):
        source, target = (leaks & others).nonzero()[0].tolist()
        return f"in learning, rows are permuted: row {target} gets what belongs to row {source}"
    return f"in learning, {_pattern(audit, leaks & others, others, 'gets outputs that are computed from')}"


def _by_all(audit: AuditContext) -> str:
    """Whether one observation of a segment changes all outputs, of every row and step: then it is no reshape."""
    segment, adapter = audit.segment(17), audit.adapter()
    observations = segment.observations.clone()
    observations[0, -1] = random_observations(audit.spec, (1, 1), audit.generator(18))[0, 0]
    base, changed = (adapter.learn(each).numbers() for each in (segment, replace(segment, observations=observations)))
    everywhere = bool((abs_difference(changed, base).amax(-1) > 0).all())
    return f"in learning, rows are mixed by {_statistics(audit)}" if everywhere else ""


def _statistics(audit: AuditContext) -> str:
    norms = [name for name, layer in audit.policy.named_modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    return f"BatchNorm ({norms[0]})" if norms else "statistics over the batch (a mean, a largest value, BatchNorm)"


def _pattern(audit: AuditContext, leaks: Tensor, others: Tensor, reads: str = "reads the memory of") -> str:
    """Describes which rows read from which. `leaks` and `others` are [from row, to row]."""
    source, target = leaks.nonzero()[0].tolist()
    if int(leaks.sum()) <= int(others.sum()) // 2:
        return f"row {target} {reads} row {source}"
    return f"rows are mixed by {_statistics(audit)}"
