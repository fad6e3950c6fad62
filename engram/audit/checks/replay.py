"""Do acting, learning and a row-by-row reference agree, at the sizes of the run? If not, from which size on?"""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from engram.audit.checks.rehearsal import Kind, Outcome, Rehearsal, rehearse
from engram.audit.checks.replay_causes import acting_cause, learning_cause
from engram.audit.checks.smallest_rehearsal import SHORT_WARMUP, conditions, smallest
from engram.audit.checks.stored_memory import stored_numbers
from engram.audit.context import AuditContext, describe
from engram.audit.difference import abs_difference, tolerance
from engram.audit.result import Check, Verdict, attempt
from engram.audit.root_cause import EXPLAINS
from engram.audit.scenario import play

TRIES = 50  # to find the smallest rehearsal that fails
FEW_TRIES = 12  # where a check that failed before explains it
STORED_MEMORY = "Learn a segment from the memory that its rows had before its first step."
IN_TD = (
    " With Engram it comes in td['memory', 'lstm'] ([B, T, layers, size], the same for all T); self._manage_lstm_state "
    "reads it."
)
FARTHEST = 10_000  # the largest environment ids that are tried
LARGE_MEMORY = 100.0  # which a policy may refuse with an error: as a position, for example
TABLE_LIMIT = 1000  # ids from here on may be refused with an error, by policies with a table of fixed size


def rehearsals(audit: AuditContext) -> Iterator[Rehearsal]:
    """From the run's own sizes to single conditions."""
    rows, horizon, steps = audit.sizes
    few = min(rows, 8)
    yield Rehearsal(few, 6, segments=2, rollouts=2, ends=0.2, both_flags=True, slices=True, minibatches="some")
    yield Rehearsal(rows, horizon, warmup=8, ends=2 / horizon, both_flags=True, slices=True, minibatches="some")
    yield Rehearsal(2, horizon, segments=max(steps // horizon, 1), warmup=steps % horizon, ends=1 / steps)
    yield Rehearsal(5, 5, segments=2, ends=0.3, both_flags=True, minibatches="one", repeats=3)
    yield Rehearsal(few, 1, segments=4, ends=0.2, repeats=2)
    yield Rehearsal(24, 4, segments=2, far_ids=(64, 1024, FARTHEST))
    yield Rehearsal(16 * rows, 2)  # many ids at once, for tables in which they collide
    yield Rehearsal(few, 8, segments=2, ends=0.1, weights=3.0)
    yield Rehearsal(few, 8, segments=2, ends=0.1, updates=3, gradients=True)
    yield Rehearsal(min(rows, 24), horizon, ends=2 / horizon, gradients=True)
    yield Rehearsal(few, 8, segments=8, ends=0.4)  # many short episodes
    yield Rehearsal(4, 6, memory=10.0)
    yield Rehearsal(4, 6, memory=LARGE_MEMORY)
    yield Rehearsal(4, 8, repeated=True, zeros=True, bounds=True)


class Fault(NamedTuple):
    kind: Kind
    case: Rehearsal  # the smallest that fails
    outcome: Outcome | None
    error: str = ""
    seen: str = ""  # which outputs and steps are off, and what is seen of the memory that acting stores
    cause: str = ""

    @property
    def text(self) -> str:
        needed = ", ".join(conditions(self.case, self.kind)) or "even from an empty memory, without episode ends"
        if self.error:
            return f"{self.kind} raises {self.error} ({needed})"
        what = {
            "acting": "acting differs from a row that plays alone and begins each episode with a fresh memory",
            "learning": "learning differs from acting",
        }[self.kind]
        assert self.outcome is not None
        wrong = self.outcome.wrong(self.kind)
        if not bool(wrong.any()):
            return f"{what}, though not every time"
        step = int(wrong.any(0).nonzero()[0])
        row = int(wrong[:, step].nonzero()[0])
        apart = float((self.outcome.acting if self.kind == "acting" else self.outcome.learning)[row, step])
        seen = f"; {self.seen}" if self.seen else ""
        return f"{what}: {needed}; first off in row {row} at step {step}, by {apart:.2g}{seen}"


def replay(audit: AuditContext) -> Verdict:
    """All rehearsals; only if one fails, the smallest that does, to say why."""
    if audit.random_outputs and not audit.mode_matters:
        audit.needs_repeatable_outputs()
    measured, bound, evidence = 0.0, 0.0, None
    faults: dict[Kind, Fault] = {}
    failing: dict[Kind, Rehearsal] = {}
    notes: list[str] = []
    for case in rehearsals(audit):
        try:
            outcome = rehearse(audit, case)
        except Exception as error:
            fault = _fault_of_error(audit, case, error, notes)
            if fault is not None:
                faults.setdefault(fault.kind, fault)
            continue
        evidence = outcome if evidence is None else evidence
        apart = max(outcome.measured("acting"), outcome.measured("learning"))
        if apart * bound >= measured * outcome.bound:  # outputs of other sizes have other bounds
            measured, bound = apart, outcome.bound
        for kind in ("acting", "learning"):
            if bool(outcome.wrong(kind).any()) and kind not in failing:
                failing[kind] = case
                evidence = outcome
        if len(failing) == 2:
            break
    for kind, case in failing.items():
        faults.setdefault(kind, _smallest_fault(audit, case, kind))
    figure = {} if evidence is None else {"difference": torch.maximum(evidence.acting, evidence.learning)[:16, :64]}
    if not faults:
        text = f"acting, learning and a row-by-row reference agree, with {_sizes(audit)}"
        return Verdict(True, measured, bound, text, notes=tuple(notes), evidence=figure)
    ordered = [faults[kind] for kind in ("acting", "learning") if kind in faults]
    text = "; ".join(fault.text for fault in ordered)
    fix = " ".join(dict.fromkeys(_fix(fault) for fault in ordered))
    return Verdict(
        False,
        measured or None,
        bound or None,
        text,
        cause=ordered[0].cause,
        fix=fix + (IN_TD if STORED_MEMORY in fix else ""),
        fix_without_engram=fix,
        notes=tuple(notes),
        evidence=figure,
    )


def _sizes(audit: AuditContext) -> str:
    rows, horizon, steps = audit.sizes
    tried = f"ids up to {FARTHEST}, weights up to 3 times as large"
    return f"{rows} rows, segments of {horizon}, {steps} acting steps, {tried}"


def _smallest_fault(audit: AuditContext, case: Rehearsal, kind: Kind) -> Fault:
    tries = 0
    explained = any("replay" in EXPLAINS.get(name, ()) for name in audit.failed)

    def fails(candidate: Rehearsal) -> bool:
        nonlocal tries
        tries += 1
        if tries > (FEW_TRIES if explained else TRIES):
            return False
        try:
            return bool(rehearse(audit, candidate, kind).wrong(kind).any())
        except Exception:
            return False

    least, stored = smallest(case, fails), attempt(stored_numbers, audit)
    if kind == "acting":
        return Fault(kind, least, rehearse(audit, least), cause=attempt(acting_cause, audit, least, stored))
    seen = "; ".join(text for text in (_wrong_outputs(audit), stored) if text)
    cause = attempt(learning_cause, audit, least, stored)
    return Fault(kind, least, rehearse(audit, least), seen=seen, cause=cause)


@torch.no_grad()
def _wrong_outputs(audit: AuditContext) -> str:
    """Which outputs and which steps of a simple segment differ from acting: it begins with no memory, and none ends."""
    scenario = audit.scenario(76, steps=6)
    played = play(audit.adapter(own_mode=True), scenario)
    learned = audit.adapter(own_mode=True).learn(scenario.segment(played.actions))
    bound = tolerance(played.value, played.log_prob)
    value, log_prob = (
        abs_difference(getattr(learned, name), getattr(played, name)).amax(0) > bound for name in ("value", "log_prob")
    )
    wrong = value | log_prob
    if not bool(wrong.any()):
        return ""
    kinds = [name for name, differs in (("values", value), ("log-probabilities", log_prob)) if not bool(differs.any())]
    text = f"{kinds[0]} agree; " if kinds else ""
    if bool(wrong[0]):
        return text + "the first step of a segment is off, before memory matters: features, heads or actions differ"
    if not bool(wrong[:-1].any()):
        return text + "only the last step of a segment is off"
    return text + "the first step of a segment agrees, later ones do not: the memory between steps differs"


def _fault_of_error(audit: AuditContext, case: Rehearsal, error: Exception, notes: list[str]) -> Fault | None:
    """An error is a fault, unless the policy refuses an id beyond its table, or a memory that it could never have."""
    if case.memory == LARGE_MEMORY:
        notes.append(f"memory {LARGE_MEMORY:g} times as large is refused: {describe(error)}")
        return None
    if case.far_ids and case.far_ids[-1] >= TABLE_LIMIT:
        within = tuple(first for first in case.far_ids if first < TABLE_LIMIT)
        try:
            outcome = rehearse(audit, case._replace(far_ids=within, rows=case.rows // 2))
        except Exception:
            pass
        else:
            notes.append(f"environment ids from {TABLE_LIMIT} on are refused: {describe(error)}")
            for kind in ("acting", "learning"):
                if bool(outcome.wrong(kind).any()):
                    return _smallest_fault(audit, case._replace(far_ids=within, rows=case.rows // 2), kind)
            return None

    def fails(candidate: Rehearsal) -> bool:
        try:
            rehearse(audit, candidate)
        except Exception:
            return True
        return False

    text = describe(error)
    kind = "learning" if "while learning" in text else "acting"
    return Fault(kind, smallest(case, fails), None, text)


def _fix(fault: Fault) -> str:
    case, acting = fault.case, fault.kind == "acting"
    if fault.error:
        return "Every size of batch, segment and minibatch must work, and every environment id."
    if case.repeated or case.zeros or case.bounds:
        return (
            "Treat an observation alike in acting and learning: do not take zeros for padding, or skip repeated ones."
        )
    if case.gradients and not case.updates:
        return "Compute the same with gradients as without: no branch on torch.is_grad_enabled() or requires_grad."
    if case.updates:
        return "Keep nothing that is computed from the weights over an update: no packed, fused or cached copies."
    if case.minibatches == "one":
        return "Keep the row dimension when there is one row: no squeeze() without a dimension."
    if case.ends and not acting:
        return "Clear memory inside the segment wherever dones | truncateds, as acting does."
    if case.ends:
        return "Clear the memory of a row before the first observation of its episode, wherever dones | truncateds."
    if case.far_ids or case.slices or (acting and case.rows > 2):
        return "Keep memory by environment id, training_env_id_start + i, with no limit, modulo or order of slices."
    if case.memory != 1.0 or "when stored" in fault.seen or "is not stored" in fault.seen:
        return "Store memory as the recurrent layer returns it: not clamped, scaled or rounded."
    if case.warmup > SHORT_WARMUP:
        return "Nothing may depend on how many calls there were."
    if case.warmup or case.segments > 1 or case.rollouts > 1:
        return STORED_MEMORY
    if acting:
        return "What a row returns must depend on that row's observations since its episode began, and on nothing else."
    return (
        "Acting and learning must be the same computation: the same encoder, time first into the recurrent layer "
        "([T, B, features]), the same flattening of rows and steps for actions and outputs."
    )


CHECKS = (
    Check(
        "replay",
        "At the sizes of a run, do acting, learning and a row-by-row reference give the same outputs?",
        "Learning corrects a policy that never acted: its ratios are wrong from the first update, and training "
        "plateaus and collapses although every single part looks right.",
        "See what it takes to fail: each condition has a check of its own that says where and how.",
        ("forward", "get_action_and_value", "evaluate_actions"),
        replay,
    ),
)
