"""Causes of mixed rows: memory that is lost, shared or stored elsewhere."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from engram.audit.adapters.external_state import leaves
from engram.audit.checks.idle_rows import IDLE, cleared_by_calls
from engram.audit.checks.start_causes import start_cause
from engram.audit.checks.which_past import describe_past, lone_acting
from engram.audit.context import AuditContext
from engram.audit.difference import abs_difference, max_difference, tolerance
from engram.audit.memory_parts import listed
from engram.audit.result import attempt
from engram.audit.retained import changed_by
from engram.audit.root_cause import ONLY_AT_STARTS
from engram.audit.scenario import Scenario, play, random_observations, shuffled_slices

FAR = 900  # environments with ids from here on are not in the scenario
LEAK_STEPS = 4  # steps in which one row's observations could reach another
ELSEWHERE = (
    "a row's memory is stored as that of other rows: a view or reshape in place of a transpose of rows and layers"
)
OVERWRITTEN = (
    "a call for other rows overwrites the memory of a row: it is kept in a buffer that calls share, not in a copy"
)
ORDER = "a row continues with another memory where batches are cut or ordered differently"
CALLS = "outputs depend on the number of calls, or on what a call keeps besides the memory of its rows"
LOST = "rows lose their memory when rows with larger ids act: a store that grows drops what it held"
ALONE = "a batch of one row acts differently from larger ones: its memory is not kept, or a squeeze() drops the row"
NEW_ROWS = "a row that is seen for the first time begins with what other rows remember"
BY_BATCH = "memory is kept by a row's position in the batch, not by its environment id"


def acting_cause(audit: AuditContext, scenario: Scenario) -> str:
    """The cause if rows affect one another in acting: in whole batches or only in others, all rows or some."""
    leaks, bound = _leaks_in_whole_batches(audit, scenario.part(0, LEAK_STEPS).with_starts())
    others = ~torch.eye(audit.rows, dtype=torch.bool)
    remembers = leaks.diagonal() > bound  # whether the past of a row changes its own outputs
    if 0 < int(remembers.sum()) < audit.rows:
        into_forgetful = (leaks > bound) & others & ~remembers
        if bool(into_forgetful.any()):
            return _pattern(audit, into_forgetful, others)
        lost = (~remembers).nonzero().flatten().tolist()
        last = ", the last of the batch," if lost == [audit.rows - 1] else ""
        return f"the memory of row {', '.join(map(str, lost))}{last} is not kept"
    if bool((leaks > bound)[others].any()):
        return _pattern(audit, (leaks > bound) & others, others)
    return _cause_in_other_batches(audit, scenario)


def _cause_in_other_batches(audit: AuditContext, scenario: Scenario) -> str:
    """The cause if rows do not affect one another in whole batches, only in others or by what is stored."""
    if attempt(_stored_elsewhere, audit):
        return ELSEWHERE
    for experiment in (partial(cleared_by_calls, calls=IDLE), start_cause, _past_in_sizes):
        if cause := attempt(experiment, audit):
            return cause
    causes = (
        (BY_BATCH, _memory_follows_position),
        (CALLS, _counts_calls),
        (ALONE, _differs_alone),
        (NEW_ROWS, _new_rows_leak),
        (LOST, _lost_to_larger_ids),
        (OVERWRITTEN, _overwritten),
        (BY_BATCH, _kept_by_slice),
    )
    cause = next((cause for cause, holds in causes if holds(audit)), "")
    if cause == CALLS:
        return CALLS + _what_calls_change(audit)
    return cause or attempt(_past_in_slices, audit, scenario)


def _leaks_in_whole_batches(audit: AuditContext, scenario: Scenario) -> tuple[Tensor, float]:
    """The change of the last outputs of a row by a different past of another, [from row, to row], and the bound."""
    base, leaks = play(audit.adapter(), scenario).numbers[:, -1], torch.zeros(audit.rows, audit.rows)
    for row in range(audit.rows):
        other = scenario.with_other_past(row, scenario.steps - 1, audit.generator(16 + row), audit.spec)
        leaks[row] = abs_difference(play(audit.adapter(), other).numbers[:, -1], base).amax(1)
    return leaks, tolerance(base)


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
            seen.append(adapter.act(scenario.batch(audit.every_row, step)).numbers())
        outputs.append(torch.stack(seen, 1))
    alone, one, other = outputs
    bound = tolerance(alone)
    return max_difference(alone, one) > bound and max_difference(one, other) <= bound


def _differs_alone(audit: AuditContext) -> bool:
    """Whether batches of one row differ from whole ones, and those of two rows do not."""
    scenario = audit.scenario(19, steps=3)
    whole, differs = play(audit.adapter(), scenario).numbers, {}
    for size in (1, 2):
        order = [
            (slice(row, min(row + size, audit.rows)), step)
            for step in range(scenario.steps)
            for row in range(0, audit.rows, size)
        ]
        differs[size] = max_difference(play(audit.adapter(), scenario, order).numbers, whole) > tolerance(whole)
    return differs[1] and not differs[2]


def _memory_follows_position(audit: AuditContext) -> bool:
    """Whether rows continue with the memory of the rows that were last at their position in the batch."""
    first, between, last = (audit.scenario(salt, rows=2, steps=2) for salt in (19, 20, 21))
    seen = []
    for ids in ((2, 3), (0, 1)):
        adapter = audit.adapter()
        play(adapter, first)
        play(adapter, between, ids=ids)
        seen.append(play(adapter, last).numbers)
    return max_difference(*seen) <= tolerance(seen[0])


def _overwritten(audit: AuditContext) -> bool:
    """Whether the outputs of rows change if other rows act between two of their steps."""
    undisturbed, after_others = _with_others_between(audit, (0, 1), (2, 3))
    return max_difference(undisturbed, after_others) > tolerance(undisturbed)


def _lost_to_larger_ids(audit: AuditContext) -> bool:
    """Whether rows remember nothing once rows with larger ids have acted, but not after those with smaller ones."""
    undisturbed, after_larger = _with_others_between(audit, (0, 1), (FAR, FAR + 1))
    fresh = play(audit.adapter(), audit.scenario(21, rows=2, steps=2)).numbers
    smaller = _with_others_between(audit, (2, 3), (0, 1))
    bound = tolerance(undisturbed)
    lost = max_difference(undisturbed, after_larger) > bound and max_difference(after_larger, fresh) <= bound
    return lost and max_difference(*smaller) <= bound


def _with_others_between(audit: AuditContext, ids: Sequence[int], others: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The outputs of two rows that have acted before: if they act again at once, and if two others act in between."""
    first, between, last = (audit.scenario(salt, rows=2, steps=2) for salt in (19, 20, 21))
    seen = []
    for disturbed in (False, True):
        adapter = audit.adapter()
        play(adapter, first, ids=ids)
        if disturbed:
            play(adapter, between, ids=others)
        seen.append(play(adapter, last, ids=ids).numbers)
    return seen[0], seen[1]


def _what_calls_change(audit: AuditContext) -> str:
    """Names of what calls change besides the memory of their rows."""
    adapter, scenario = audit.adapter(), audit.scenario(19, steps=2)
    batches = iter([scenario.batch(audit.every_row, step) for step in range(2)])
    with torch.no_grad():
        names = changed_by(adapter.policy, lambda: adapter.act(next(batches)))
    return f" ({listed(names)})" if names else ""


def _kept_by_slice(audit: AuditContext) -> bool:
    """Whether outputs are right if every step is cut into the same slices of rows, and wrong if the cuts vary."""
    scenario = audit.scenario(19, steps=3)
    whole = play(audit.adapter(), scenario).numbers
    cuts = {  # at each step
        "same": [[0, 2, audit.rows]] * 3,
        "varied": [[0, audit.rows], [0, 2, audit.rows], [0, 3, audit.rows]],
    }
    differs = {}
    for name, cuts_of_steps in cuts.items():
        order = [(slice(a, b), step) for step, edges in enumerate(cuts_of_steps) for a, b in pairwise(edges)]
        differs[name] = max_difference(play(audit.adapter(), scenario, order).numbers, whole) > tolerance(whole)
    return differs["varied"] and not differs["same"]


def _past_in_slices(audit: AuditContext, scenario: Scenario) -> str:
    """The memory that rows continue with if slices act out of order, without episode starts."""
    plain = scenario.with_starts()
    order = shuffled_slices(audit.rows, range(audit.steps), audit.generator(15))
    seen, alone = play(audit.adapter(), plain, order).numbers, _alone(audit, plain)
    bound = tolerance(alone)
    wrong = abs_difference(seen, alone).amax(-1) > bound
    if not bool(wrong.any()):
        return ONLY_AT_STARTS
    return describe_past(lone_acting(audit.adapter()), plain, seen, wrong, bound) or ORDER


def _past_in_sizes(audit: AuditContext) -> str:
    """The sizes of batches in which rows are wrong, and the memory they use there; empty if all sizes are wrong."""
    scenario = audit.scenario(19, steps=3)
    alone = _alone(audit, scenario)
    bound, past_by_size = tolerance(alone), dict[int, str]()
    for size in range(2, audit.rows + 1):
        part = scenario.rows_of(range(size))
        seen = play(audit.adapter(), part).numbers
        wrong = abs_difference(seen, alone[:size]).amax(-1) > bound
        if bool(wrong.any()):
            past_by_size[size] = describe_past(lone_acting(audit.adapter()), part, seen, wrong, bound)
    if not past_by_size or len(past_by_size) == audit.rows - 1:
        return ""
    past = next(iter(past_by_size.values()))
    return f"in batches of {', '.join(map(str, past_by_size))} rows, {past}" if past else ""


def _alone(audit: AuditContext, scenario: Scenario) -> Tensor:
    """[B, S, K]: what each row gives if it plays alone."""
    rows = range(scenario.rows)
    return torch.stack([play(audit.adapter(), scenario.rows_of([row])).numbers[0] for row in rows])


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
    if bool(leaks.diagonal().all()) and (cause := _batch_statistics(audit)):
        return cause
    if max_difference(changed[1:], base[1:]) <= tolerance(base) and bool(leaks.diagonal().all()):
        return "in learning, rows and steps are mixed up: a reshape in place of a transpose of [B, T]"
    if not bool(leaks.diagonal().all()):
        source, target = (leaks & others).nonzero()[0].tolist()
        return f"in learning, rows are permuted: row {target} gets what belongs to row {source}"
    return f"in learning, {_pattern(audit, leaks & others, others, 'gets outputs that are computed from')}"


def _batch_statistics(audit: AuditContext) -> str:
    """The cause if one observation changes the outputs of every row and step, which a wrong reshape would not do."""
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
