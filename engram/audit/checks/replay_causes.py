"""Causes of differences between acting, learning and the reference: experiments at the smallest failing rehearsal."""

import torch

from engram.audit.checks.idle_rows import COLLIDE, cleared_by_calls, far_ids_cause
from engram.audit.checks.rehearsal import Kind, Rehearsal, rehearse
from engram.audit.checks.segment_causes import (
    STEPS,
    STORED,
    ignores_steps,
    looks_back,
    simple_segment,
)
from engram.audit.checks.smallest_rehearsal import SHORT_WARMUP, WITH_MEMORY, conditions
from engram.audit.checks.stored_memory import segment_start_cause
from engram.audit.checks.which_past import acting_past, learning_past, past_by_learning
from engram.audit.context import AuditContext
from engram.audit.difference import abs_difference, max_difference, tolerance
from engram.audit.result import attempt
from engram.audit.scenario import play

SMALL_SEGMENT = 16  # rows times steps
MAX_EXAMINED = 24  # steps of the longest segment in which every step is examined
AFTER_START = "learning agrees with acting at an episode start inside a segment, and no longer at the steps after it"
STALE = "calls use a copy of the weights that was made before an update"


def acting_cause(audit: AuditContext, case: Rehearsal, stored: str = "") -> str:
    """The cause if a row in this rehearsal acts differently from one that plays alone."""
    if case.updates:
        return STALE
    if "rounded" in stored and case.weights != 1.0:
        return _cause_first(stored)
    if case.far_ids:
        return attempt(far_ids_cause, audit, case.far_ids[0]) or COLLIDE.format(case.far_ids[0])
    if case.repeated or case.zeros or case.bounds:
        return f"acting treats an observation differently that {_which_observation(case)}"
    if case.warmup > SHORT_WARMUP and (cause := attempt(cleared_by_calls, audit, case.warmup)):
        return cause
    if past := attempt(acting_past, audit, case):
        return _with_conditions(past, case, "acting")
    if case.warmup > SHORT_WARMUP:
        return f"from {case.warmup} calls on, outputs change with the number of calls"
    if case.ends:
        return "memory is not cleared exactly where an episode starts"
    if case.rows > 2:
        return f"with {case.rows} rows or more, rows lose their memory or share that of others"
    return "a row's outputs depend on more than its own observations since its episode began"


def _cause_first(stored: str) -> str:
    """The sentence `EVIDENCE: CAUSE` as `CAUSE (EVIDENCE)`."""
    evidence, _, cause = stored.rpartition(": ")
    return f"{cause} ({evidence})"


def _which_observation(case: Rehearsal) -> str:
    """The kind of observation that this rehearsal needs to fail."""
    found = (
        (case.repeated, "is the same as the one before"),
        (case.zeros, "is all zeros (padding?)"),
        (case.bounds, "is at its upper bound"),
    )
    return " or ".join(text for needed, text in found if needed)


def _with_conditions(past: str, case: Rehearsal, kind: Kind) -> str:
    """What a row does, and at which sizes."""
    needs = ", ".join(each for each in conditions(case, kind) if each != WITH_MEMORY)
    return f"{past} ({needs})" if needs else past


def learning_cause(audit: AuditContext, case: Rehearsal, stored: str) -> str:
    """The cause if learning in this rehearsal differs from correct acting."""
    if case.far_ids:
        return attempt(far_ids_cause, audit, case.far_ids[0]) or COLLIDE.format(case.far_ids[0])
    if case.repeated or case.zeros or case.bounds:
        return f"learning or acting treats an observation differently that {_which_observation(case)}"
    if case.gradients and not case.updates:
        rows = (
            f" of {case.rows} rows and {case.horizon} steps or more" if case.rows * case.horizon > SMALL_SEGMENT else ""
        )
        text = f"learning computes something else with gradients than without, in segments{rows}"
        past = attempt(learning_past, audit, case)
        return f"{text}: {past}" if past else text
    before = bool(case.warmup or case.segments > 1 or case.rollouts > 1)
    if case.updates:
        return STALE
    if stored and not case.ends:
        return _cause_first(stored)
    if case.rows == case.horizon > 3 and _agrees(audit, case._replace(horizon=case.horizon + 1)):
        what = "flags of rows and steps" if case.ends else "rows and steps"
        return f"{what} are mixed up in learning where there are as many rows as steps"
    if past := attempt(learning_past, audit, case):
        if case.ends and attempt(_at_starts, audit, case) == AFTER_START:
            return f"{AFTER_START}: {past}"
        longer = case._replace(horizon=audit.sizes.horizon)
        size = f", in segments of {case.horizon} steps" if case.horizon > 1 and _agrees(audit, longer) else ""
        return _with_conditions(f"in learning{size}, {past}", case, "learning")
    if case.warmup > SHORT_WARMUP:
        looked = looks_back(audit, max(case.warmup, STEPS) + STEPS) if case.warmup + STEPS <= MAX_EXAMINED else ""
        return looked or f"learning differs from acting once a row has played {case.warmup} steps"
    if case.ends:
        return _at_starts(audit, case)
    if before:
        return segment_start_cause(audit)
    if case.memory != 1.0:
        return "memory that has grown large is clamped or scaled in acting or learning alone"
    if case.repeats > 1:
        return "a learning call changes what the next one computes"
    if case.minibatches == "one":
        return "learning from a minibatch of one row computes something else"
    if case.horizon > 3:
        return _from_a_step(audit, case.horizon)
    if case.rows > 3:
        return f"learning computes something else with {case.rows} rows or more"
    cause = simple_segment(audit)
    if cause.startswith(STORED) and (past := attempt(past_by_learning, audit)):
        return f"in acting, {past}"
    return cause


def _agrees(audit: AuditContext, case: Rehearsal) -> bool:
    return not bool(rehearse(audit, case, "learning").wrong("learning").any())


@torch.no_grad()
def _at_starts(audit: AuditContext, case: Rehearsal) -> str:
    """The cause if learning differs from acting at episode starts inside a segment."""
    rows, steps = max(case.rows + 1, audit.rows), max(case.horizon, 4)
    scenario = audit.scenario(83, rows=rows, steps=steps)
    flags = torch.zeros_like(scenario.dones)
    flags[:, steps // 2] = True
    flagged = scenario.with_starts(dones=flags)
    adapter, played = audit.adapter(), play(audit.adapter(), flagged)
    one, other = (
        adapter.learn(each.segment(played.actions)).value[:, steps // 2 :]
        for each in (
            flagged,
            flagged.with_other_past(slice(None), steps // 2, audit.generator(84), audit.spec),
        )
    )
    bound = tolerance(one)
    kept = (abs_difference(one, other) > bound).any(1)
    if bool(kept.all()):
        return "learning does not clear memory where acting does, at episode starts inside a segment"
    if bool(kept.any()):
        numbers = kept.nonzero().flatten().tolist()
        first, on = numbers[0], numbers == list(range(numbers[0], rows))
        several = f"rows from {first} on" if on else f"row {first}{' and others' * (len(numbers) > 1)}"
        return f"learning does not clear {several} at episode starts inside a segment"
    wrong = abs_difference(one, played.value[:, steps // 2 :]) > bound
    if bool(wrong.any()) and not bool(wrong[:, 0].any()):
        return AFTER_START
    if bool(wrong.any()):
        return "acting and learning begin an episode from different initial states"
    return "learning differs from acting after some episode starts inside a segment"


@torch.no_grad()
def _from_a_step(audit: AuditContext, horizon: int) -> str:
    """The cause if learning differs from acting only in long segments."""
    scenario = audit.scenario(88, rows=8, steps=horizon + 2)
    played = play(audit.adapter(), scenario)
    segment, adapter = scenario.segment(played.actions), audit.adapter()
    learned = adapter.learn(segment)
    wrong = abs_difference(learned.value, played.value) > tolerance(played.value)
    if not bool(wrong.any()):
        return f"in segments of {horizon} steps or more, learning computes something else than acting"
    step = int(wrong.any(0).nonzero()[0])
    rows = wrong[:, step].nonzero().flatten().tolist()
    tail = adapter.learn(segment[rows].steps(step))
    if step and max_difference(tail.value, learned.value[rows, step:]) <= tolerance(tail.value):
        which = "of a segment"
        if len(rows) < len(wrong):
            which = f"of row {rows[0]} and at others, as some observations say"
        return f"learning clears memory at step {step} {which}, though no episode starts there"
    if horizon <= MAX_EXAMINED and (cause := looks_back(audit, horizon + 2) or ignores_steps(audit)):
        return cause
    return f"in segments of {horizon} steps or more, learning differs from acting from step {step} on"
