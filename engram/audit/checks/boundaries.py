"""Is memory cleared exactly where an episode starts?"""

# B rows, T steps

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engram.audit.context import EXACT, Audit, gap, tolerance, worst
from engram.audit.playing import live
from engram.audit.result import Check, Verdict
from engram.audit.subject import Segment, Subject
from engram.audit.td import TdSubject

KINDS = ("dones", "truncateds")
CUT, AFTER = 4, 3  # steps before an episode starts, and from there


@torch.no_grad()
def boundary_acting(audit: Audit) -> Verdict:
    """Rows that start an episode say what a fresh policy says, from that step on; the others go on undisturbed."""
    subject, story = audit.subject(), audit.story(50, steps=CUT + AFTER)
    if audit.memory_effect <= EXACT and (kept := _kept_at_starts(audit, subject)) > EXACT:
        return Verdict(False, kept, EXACT, UPSIDE_DOWN, fix=TURN_AROUND, elsewhere=TURN_AROUND)
    audit.needs_memory()
    carried = live(subject, story).numbers[:, CUT:]
    subject.forget()
    fresh = live(subject, story.part(CUT)).numbers
    starting = torch.zeros(audit.rows, dtype=torch.bool)
    starting[[1, 4]] = True
    expected = torch.where(starting.view(-1, 1, 1), fresh, carried)
    bound, off = tolerance(carried, fresh), 0.0
    said: dict[str, str] = {}
    for kind in KINDS:
        flags = torch.zeros_like(story.dones)
        flags[starting, CUT] = True
        subject.forget()
        seen = live(subject, story.with_starts(**{kind: flags})).numbers[:, CUT:]
        difference = worst(seen, expected)
        off = max(off, difference)
        if difference > bound:
            said[kind] = _explain(seen, carried, fresh, starting, bound)
    text = _told(said) or "a row that starts an episode puts out what a fresh policy does, and the others go on"
    notes = tuple(_poison(audit, subject))
    return Verdict(off <= bound, off, bound, text, fix=_fix_for(said), notes=notes, evidence=_norms(audit))


def _kept_at_starts(audit: Audit, subject: Subject) -> float:
    """What the past changes where an episode starts, for a policy that remembers nothing elsewhere."""
    story, said = audit.story(55, steps=3), []
    flags = torch.zeros_like(story.dones)
    flags[:, 2] = True
    for each in (story, story.with_other_past(slice(None), 2, audit.generator(56), audit.spec)):
        subject.forget()
        said.append(live(subject, each.with_starts(dones=flags)).numbers[:, -1])
    subject.forget()
    return worst(*said)


def _explain(seen: Tensor, carried: Tensor, fresh: Tensor, starting: Tensor, bound: float) -> str:
    """Which mistake it is. Each is [rows, steps from the start on, numbers]."""
    others = worst(seen[~starting], carried[~starting])
    if others > bound:
        if worst(seen[~starting], fresh[~starting]) <= bound:
            return "when one row starts an episode, all rows are cleared"
        return f"rows in the middle of their episode change by {others:.2g} when another one starts"
    first = worst(seen[starting, 0], fresh[starting, 0])
    if worst(seen[starting, 0], carried[starting, 0]) <= bound:
        if worst(seen[starting], carried[starting]) <= bound:
            return f"memory is not cleared at all; outputs are off by {first:.2g}"
        return f"memory is cleared too late: an episode's first observation still meets the old one, off by {first:.2g}"
    if first <= bound:
        later = worst(seen[starting], fresh[starting])
        return f"memory is cleared for the first step, but the steps after it are off by {later:.2g}"
    return f"memory is cleared only in part, or to something else than a fresh policy's; off by {first:.2g}"


def _told(said: dict[str, str]) -> str:
    """What was found for each kind of end; once, if it is the same for both."""
    if len({*said.values()}) == 1 and len(said) == len(KINDS):
        return next(iter(said.values()))
    return "; ".join(f"{kind}: {text}" for kind, text in said.items())


def _fix_for(said: dict[str, str]) -> str:
    if len(said) != 1:
        return ""
    (missed,) = said
    other = KINDS[1 - KINDS.index(missed)]
    return f"Episodes also end by {missed}: clear where td['dones'] | td['truncateds'], not only where {other} say so."


def _poison(audit: Audit, subject: Subject) -> list[str]:
    """A NaN in memory is gone after an episode start only if memory is filled, not multiplied, with zero."""
    if not isinstance(subject, TdSubject) or not subject.memory_in_td:
        return []
    moment = audit.story(51, steps=1).moment(slice(0, audit.rows), 0)
    td = subject.acting_td(moment)
    memory = {name: torch.full_like(value, torch.nan) for name, value in subject._nothing(audit.rows).items()}
    td["memory"], td["dones"] = memory, torch.ones(audit.rows, dtype=torch.bool)
    if subject.policy(td)["values"].isfinite().all():
        return []
    return ["a NaN in memory survives an episode start: clear with masked_fill, not by multiplying with a mask"]


def _norms(audit: Audit) -> dict[str, Tensor]:
    """Size of memory over some episodes, for the picture."""
    subject, story = audit.subject(), audit.story(52, rows=3, steps=24, end_chance=0.12)
    norms = []
    for step in range(story.steps):
        subject.act(story.moment(slice(0, 3), step))
        remembered = subject.remembered(3)
        if remembered is None:
            return {}
        norms.append(remembered.float().square().mean(1).sqrt())
    return {"memory_norm": torch.stack(norms, 1), "starts": story.starts.float()}


@torch.no_grad()
def boundary_learning(audit: Audit) -> Verdict:
    """Row i starts an episode at step i. From there on it must say what the rest of the segment says on its own."""
    steps = audit.steps
    subject, segment = audit.subject(), audit.segment(53, rows=steps, steps=steps + 1)
    memory = some_memory(audit, subject, steps)
    plain = subject.learn(segment, memory).numbers()[:, :steps]
    tails = [subject.learn(segment.steps(step)).numbers() for step in range(steps)]  # from no memory
    diagonal = torch.eye(steps, dtype=torch.bool)
    bound = tolerance(plain, *tails)
    said: dict[str, str] = {}
    off = torch.zeros(steps, steps)
    for kind in KINDS:
        flags = torch.zeros_like(segment.dones)
        flags[:, :steps] = diagonal
        told = _with_starts(segment, kind, flags)
        seen = subject.learn(told, memory).numbers()[:, :steps]
        expected = plain.clone()
        for step in range(steps):
            expected[step, step:] = tails[step][step, : steps - step]
        difference = gap(seen, expected).amax(2)
        off = torch.maximum(off, difference)
        if difference.max() > bound:
            said[kind] = _explain_learning(difference, seen, plain, tails, bound)
    alone = _one_start(subject, segment, memory, plain)
    measured = max(float(off.max()), alone)
    text = _told(said) or f"starts at every one of {steps} steps cut exactly there, for that row alone"
    if alone > bound and not said:
        text = f"a start in one row changes other rows by {alone:.2g}"
    return Verdict(measured <= bound, measured, bound, text, fix=_fix_for(said), evidence={"difference": off})


def _with_starts(segment: Segment, kind: str, flags: Tensor) -> Segment:
    return replace(segment.without_starts(), **{kind: flags})


def _one_start(subject: Subject, segment: Segment, memory: Any, plain: Tensor) -> float:
    flags = torch.zeros_like(segment.dones)
    flags[2, 3] = True
    seen = subject.learn(_with_starts(segment, "dones", flags), memory).numbers()[:, : plain.shape[1]]
    others = torch.arange(len(plain)) != 2
    return worst(seen[others], plain[others])


@torch.no_grad()
def some_memory(audit: Audit, subject: Subject, rows: int) -> Any:
    """Memory that is not empty, where learning can be given one."""
    if not subject.learns_any_rows:
        return None
    live(subject, audit.story(54, rows=rows, steps=3))
    return subject.memory_of(torch.arange(rows))


def _explain_learning(difference: Tensor, seen: Tensor, plain: Tensor, tails: list[Tensor], bound: float) -> str:
    steps = len(difference)
    before = torch.ones(steps, steps).tril(-1).bool()
    row, step = divmod(int((difference > bound).flatten().nonzero()[0]), steps)
    first = f"first off in row {row} at step {step}, by {float(difference[row, step]):.2g}"
    if difference[before].max() > bound:
        return f"a start also changes outputs before it, or in other rows; {first}"
    inside = range(1, steps)
    if all(worst(seen[i, i:], plain[i, i:]) <= bound for i in inside):
        return f"memory is not cleared inside a segment, only at its first step if at all; {first}"
    late = all(worst(seen[i, i + 1 :], tails[i + 1][i, : steps - i - 1]) <= bound for i in range(1, steps - 1))
    if late:
        return f"memory is cleared one step too late; {first}"
    return f"memory is cleared only in part, or to something else than a fresh one; {first}"


UPSIDE_DOWN = "the mask is upside down: memory is cleared at every step, except where an episode starts"
TURN_AROUND = "Clear where an episode starts, nowhere else: h.masked_fill(starts, 0), or h * ~starts, not h * starts."

CHECKS = (
    Check(
        "boundary_acting",
        "When acting, is memory cleared before the first observation of an episode: that row's, at that step?",
        "An agent begins its episode with memories of another one, and acts on them.",
        "Clear rows where td['dones'] | td['truncateds'], before the LSTM sees the observation: "
        "h.masked_fill(starts.view(1, -1, 1), 0), and the same for c. self._manage_lstm_state does it.",
        ("_manage_lstm_state", "forward_eval", "get_states", "_process_sequence", "forward"),
        boundary_acting,
        elsewhere="Set h and c of the rows that are done to 0 before the LSTM sees their next observation, whether the "
        "episode was terminated or truncated.",
        learns=False,
    ),
    Check(
        "boundary_learning",
        "When learning, is memory cleared inside a segment at every place where an episode starts, for that row alone?",
        "Learning sees another memory than acting had: the log-probabilities it compares are of two different "
        "policies.",
        "Clear memory at every step of the segment where dones | truncateds, not only at its first: use the core of "
        "LSTMWrapper with self._manage_lstm_state, or step through the segment and clear before each step.",
        ("_manage_lstm_state", "get_states", "_process_sequence", "forward"),
        boundary_learning,
        elsewhere="Hand the episode starts of the whole sequence to the learning call, and set h and c of a row to 0 "
        "before every step where one starts: step by step, or by splitting sequences there.",
    ),
)
