"""Is memory cleared exactly where an episode starts?"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engram.audit.adapters.base import PolicyAdapter, Segment
from engram.audit.adapters.td import TdAdapter
from engram.audit.checks.boundary_causes import (
    FADED,
    FLAGS,
    IGNORED,
    IN_PART,
    LEARNED_ON,
    RETURNS,
    Explanation,
    cause_of,
    depends_on_others,
    explain_acting,
    explain_learning,
    fix_for,
    joined,
    mixed_with_old,
    surviving_parts,
)
from engram.audit.checks.start_causes import AFTER, BEFORE, learning_start_cause, start_cause
from engram.audit.checks.which_past import past_by_learning
from engram.audit.context import AuditContext
from engram.audit.difference import EXACT, abs_difference, max_difference, tolerance
from engram.audit.memory_parts import listed
from engram.audit.result import Check, Verdict, attempt
from engram.audit.scenario import Scenario, play


@torch.no_grad()
def boundary_acting(audit: AuditContext) -> Verdict:
    """Rows that start an episode give a fresh policy's outputs from that step on; the others are not disturbed."""
    scenario = audit.scenario(50, steps=BEFORE + AFTER)
    if audit.memory_effect <= EXACT and (kept := _kept_at_starts(audit)) > EXACT:
        return Verdict(False, kept, EXACT, INVERTED, cause=INVERTED, fix=INVERTED_FIX, fix_without_engram=INVERTED_FIX)
    audit.needs_memory()
    carried = play(audit.adapter(), scenario).numbers[:, BEFORE:]
    fresh = play(audit.adapter(), audit.fresh_start(scenario.part(BEFORE))).numbers
    starting = torch.zeros(audit.rows, dtype=torch.bool)
    starting[[1, 4]] = True
    expected = torch.where(starting.view(-1, 1, 1), fresh, carried)
    bound, worst = tolerance(carried, fresh), 0.0
    found: dict[str, Explanation] = {}
    for name, (done, truncated) in FLAGS.items():
        flags = torch.zeros_like(scenario.dones)
        flags[starting, BEFORE] = True
        seen = play(audit.adapter(), scenario.with_starts(flags & done, flags & truncated)).numbers[:, BEFORE:]
        difference = max_difference(seen, expected)
        worst = max(worst, difference)
        if difference > bound:
            found[name] = explain_acting(seen, carried, fresh, starting, bound)
    special_cases = (_all_rows_start, _one_step_episodes, _first_observation_ignored)
    special = "" if found else next((text for case in special_cases if (text := case(audit, scenario, bound))), "")
    text = joined(found) or special or "a row that starts an episode acts as a fresh policy does; other rows continue"
    cause = (attempt(start_cause, audit) if found else "") or cause_of(found) or special.partition(";")[0]
    if cause in (IGNORED, IN_PART) and (parts := attempt(surviving_parts, audit)):
        cause = parts if parts != FADED or cause == IN_PART else cause
    if cause in (IGNORED, IN_PART, FADED):
        cause = attempt(depends_on_others, audit) or cause
    elif cause == RETURNS:
        past = attempt(past_by_learning, audit)
        cause = f"in acting, {past}" if past else attempt(mixed_with_old, audit) or cause
    return Verdict(
        worst <= bound and not special,
        worst,
        bound,
        text,
        cause=cause,
        fix=fix_for(found),
        notes=(*_initial_state(audit), *_ignores_starts(audit, scenario)),
    )


def _initial_state(audit: AuditContext) -> tuple[str, ...]:
    """A note if episodes begin with something else than an empty memory: no fault, since all begin with the same."""
    if audit.learned_start:
        return (f"a start brings in the learned initial state {audit.learned_start}",)
    scenario = audit.scenario(58, steps=1)
    empty, flagged = (play(audit.adapter(), each).numbers for each in (scenario, audit.fresh_start(scenario)))
    if max_difference(empty, flagged) <= tolerance(empty):
        return ()
    return ("an episode does not start as an empty memory does: from a constant state, or without some input",)


def _ignores_starts(audit: AuditContext, scenario: Scenario) -> tuple[str, ...]:
    """A note if td["starts"] is ignored, with which training also flags the starts of agents that join late."""
    adapter = audit.adapter()
    if not isinstance(adapter, TdAdapter) or not adapter.memory_in_td:
        return ()
    fresh = play(audit.adapter(), audit.fresh_start(scenario.part(BEFORE))).numbers
    play(adapter, scenario.part(0, BEFORE))
    adapter.only_starts = True
    seen = play(adapter, audit.fresh_start(scenario.part(BEFORE))).numbers
    if max_difference(seen, fresh) <= tolerance(fresh):
        return ()
    return (
        "td['starts'] is ignored: agents that join late keep an old memory, and trainer.memory=off changes nothing",
    )


def _kept_at_starts(audit: AuditContext) -> float:
    """The effect of the past on outputs at an episode start, for a policy that remembers nothing elsewhere."""
    scenario, outputs = audit.scenario(55, steps=3), []
    flags = torch.zeros_like(scenario.dones)
    flags[:, 2] = True
    for each in (scenario, scenario.with_other_past(slice(None), 2, audit.generator(56), audit.spec)):
        outputs.append(play(audit.adapter(), each.with_starts(dones=flags)).numbers[:, -1])
    return max_difference(*outputs)


def _all_rows_start(audit: AuditContext, scenario: Scenario, bound: float) -> str:
    """All rows must be cleared if all start an episode at once."""
    flags = torch.zeros_like(scenario.dones)
    flags[:, BEFORE] = True
    seen = play(audit.adapter(), scenario.with_starts(dones=flags)).numbers[:, BEFORE:]
    fresh = play(audit.adapter(), audit.fresh_start(scenario.part(BEFORE))).numbers
    kept = (abs_difference(seen, fresh).amax((1, 2)) > bound).nonzero().flatten().tolist()
    if not kept:
        return ""
    which = f"row{'s' * (len(kept) > 1)} {listed([*map(str, kept)])} {'are' if len(kept) > 1 else 'is'}"
    return f"where all rows start an episode at once, {which} not cleared"


def _one_step_episodes(audit: AuditContext, scenario: Scenario, bound: float) -> str:
    """Two consecutive starts: the second must clear memory too."""
    flags = torch.zeros_like(scenario.dones)
    flags[:, BEFORE : BEFORE + 2] = True
    seen = play(audit.adapter(), scenario.with_starts(dones=flags)).numbers[:, BEFORE + 1 :]
    fresh = play(audit.adapter(), audit.fresh_start(scenario.part(BEFORE + 1))).numbers
    difference = max_difference(seen, fresh)
    if difference <= bound:
        return ""
    return f"the second of two starts in a row is ignored, or cleared differently; off by {difference:.2g}"


def _first_observation_ignored(audit: AuditContext, scenario: Scenario, bound: float) -> str:
    """The first observation of an episode must affect outputs, then and later, as any other does."""
    after = scenario.part(BEFORE)
    flags = torch.zeros_like(after.dones)
    flags[:, 0] = True
    other = after.with_other_past(slice(None), 1, audit.generator(57), audit.spec)
    usual, at_start = (
        abs_difference(*(play(audit.adapter(), each.with_starts(starts)).numbers for each in (after, other)))
        for starts in (None, flags)
    )
    lost = [step for step in range(AFTER) if usual[:, step].max() > bound and at_start[:, step].max() <= bound]
    if not lost:
        return ""
    if lost[0] == 0:
        return "the first observation of an episode is ignored"
    return "the first observation of an episode is forgotten: memory is cleared again after it, or not stored"


class LearnedSegment(NamedTuple):
    """A segment, and what learning gives: without starts, and for the rest of the segment from each step on alone."""

    adapter: PolicyAdapter
    segment: Segment
    memory: Any
    plain: Tensor
    tails: list[Tensor]

    def with_starts(self, rows: int | slice, steps: int | slice) -> Segment:
        """The segment in which episodes start at these steps of these rows, and nowhere else."""
        flags = torch.zeros_like(self.segment.dones)
        flags[rows, steps] = True
        return replace(self.segment, dones=flags)


@torch.no_grad()
def boundary_learning(audit: AuditContext) -> Verdict:
    """Row i starts an episode at step i. From there on it must give what the rest of the segment gives alone."""
    steps = audit.steps
    adapter, segment = audit.adapter(), audit.segment(53, rows=steps, steps=steps + 1)
    memory = some_memory(audit, adapter, steps)
    plain = adapter.learn(segment, memory).numbers()[:, :steps]
    tails = [adapter.learn(audit.fresh_start(segment.steps(step))).numbers() for step in range(steps)]
    learned, bound = LearnedSegment(adapter, segment, memory, plain, tails), tolerance(plain, *tails)
    explained: dict[str, Explanation] = {}
    worst = torch.zeros(steps, steps)  # the largest difference over FLAGS, by row and step
    for name, (done, truncated) in FLAGS.items():
        flags = torch.zeros_like(segment.dones)
        flags[:, :steps] = torch.eye(steps, dtype=torch.bool)
        flagged = replace(segment, dones=flags & done, truncateds=flags & truncated)
        seen = adapter.learn(flagged, memory).numbers()[:, :steps]
        expected = plain.clone()
        for step in range(steps):
            expected[step, step:] = tails[step][step, : steps - step]
        difference = abs_difference(seen, expected).amax(2)
        worst = torch.maximum(worst, difference)
        if difference.max() > bound:
            unflagged = [adapter.learn(segment.steps(step)).numbers() for step in range(steps)]
            own_row_only = _start_in_one_row(learned) <= bound
            explained[name] = explain_learning(difference, seen, plain, unflagged, bound, own_row_only)
    text, cause = joined(explained), cause_of(explained)
    if explained:
        cause = attempt(start_cause, audit, True) or cause
    if cause == LEARNED_ON:
        cause = attempt(learning_start_cause, audit, adapter, segment, memory) or cause
    measured = float(worst.max())
    if not text:
        for special, experiment in SPECIAL_STARTS.items():
            apart = experiment(learned)
            measured = max(measured, apart)
            if apart > bound:
                text = special.format(apart)
                cause = f"in learning, {text.partition(';')[0]}"
                break
    passed = not text
    text = text or f"starts at every one of {steps} steps cut exactly there, for that row alone"
    return Verdict(passed, measured, bound, text, cause=cause, fix=fix_for(explained), evidence={"difference": worst})


def _start_in_one_row(case: LearnedSegment) -> float:
    """The change of other rows by a start in one."""
    seen = case.adapter.learn(case.with_starts(2, 3), case.memory).numbers()[:, : case.plain.shape[1]]
    others = torch.arange(len(case.plain)) != 2
    return max_difference(seen[others], case.plain[others])


def _starts_in_a_row(case: LearnedSegment) -> float:
    seen = case.adapter.learn(case.with_starts(slice(None), slice(2, 4)), case.memory).numbers()[:, 3:]
    return max_difference(seen, case.tails[3])


def _start_of_one_row_alone(case: LearnedSegment) -> float:
    if not case.adapter.learns_row_subsets:
        return 0.0
    alone = case.adapter.select_rows(case.memory, [1]) if case.memory is not None else None
    seen = case.adapter.learn(case.with_starts(slice(None), 3)[[1]], alone).numbers()[:, 3:]
    return max_difference(seen, case.tails[3][[1]])


def _start_at_the_last_step(case: LearnedSegment) -> float:
    last = case.plain.shape[1] - 1
    # Not as many steps as rows: that is another condition.
    segment = case.with_starts(slice(None), last).steps(1, last + 1)
    return max_difference(case.adapter.learn(segment, case.memory).numbers()[:, -1], case.tails[last][:, 0])


SPECIAL_STARTS: dict[str, Callable[[LearnedSegment], float]] = {  # what is wrong if the difference is too large
    "a start in one row changes other rows by {:.2g}": _start_in_one_row,
    "the second of two starts in a row is ignored; off by {:.2g}": _starts_in_a_row,
    "starts are ignored in a minibatch of one row; off by {:.2g}": _start_of_one_row_alone,
    "memory is not cleared where an episode starts at the last step; off by {:.2g}": _start_at_the_last_step,
}


@torch.no_grad()
def some_memory(audit: AuditContext, adapter: PolicyAdapter, rows: int) -> Any:
    """A memory that is not empty; None if learning does not take one."""
    if not adapter.learns_row_subsets:
        return None
    play(adapter, audit.scenario(54, rows=rows, steps=3))
    return adapter.memory_of(list(range(rows)))


INVERTED = "the mask is inverted: memory is cleared at every step, except where an episode starts"
INVERTED_FIX = "Clear where an episode starts, nowhere else: h.masked_fill(starts, 0), or h * ~starts, not h * starts."

CHECKS = (
    Check(
        "boundary_acting",
        "When acting, is a row's memory cleared before the first observation of its episode, and only then?",
        "An agent begins its episode with memories of another one, and acts on them.",
        "Clear rows where td['dones'] | td['truncateds'], before the LSTM sees the observation: "
        "h.masked_fill(starts.view(1, -1, 1), 0), and the same for c. self._manage_lstm_state does it.",
        ("_manage_lstm_state", "forward_eval", "get_states", "_process_sequence", "forward"),
        boundary_acting,
        fix_without_engram="Set h and c of the rows that are done to 0 before the LSTM sees their next observation, "
        "whether the episode was terminated or truncated.",
        needs_learning=False,
    ),
    Check(
        "boundary_learning",
        "When learning, is memory cleared inside a segment wherever an episode starts, for that row alone?",
        "Learning sees another memory than acting had, so it compares log-probabilities of two different policies.",
        "Clear memory at every step of the segment where dones | truncateds, not only at its first: use the core of "
        "LSTMWrapper with self._manage_lstm_state, or step through the segment and clear before each step.",
        ("_manage_lstm_state", "get_states", "_process_sequence", "forward"),
        boundary_learning,
        fix_without_engram="Pass the episode starts of the whole sequence to the learning call, and set h and c of "
        "a row to 0 before every step where one starts: step by step, or by splitting sequences there.",
    ),
)
