"""Is memory cleared exactly where an episode starts?"""

# B rows, T steps

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engram.audit.adapters.base import PolicyAdapter, Segment
from engram.audit.adapters.td import TdAdapter
from engram.audit.context import EXACT, AuditContext, abs_difference, max_difference, tolerance
from engram.audit.result import Check, Verdict
from engram.audit.scenario import play

KINDS = ("dones", "truncateds")
CUT, AFTER = 4, 3  # steps before an episode starts, and from there


@torch.no_grad()
def boundary_acting(audit: AuditContext) -> Verdict:
    """Rows that start an episode say what a fresh policy says, from that step on; the others go on undisturbed."""
    adapter, scenario = audit.adapter(), audit.scenario(50, steps=CUT + AFTER)
    if audit.memory_effect <= EXACT and (kept := _kept_at_starts(audit, adapter)) > EXACT:
        return Verdict(False, kept, EXACT, UPSIDE_DOWN, fix=TURN_AROUND, fix_without_engram=TURN_AROUND)
    audit.needs_memory()
    carried = play(adapter, scenario).numbers[:, CUT:]
    adapter.reset()
    fresh = play(adapter, scenario.part(CUT)).numbers
    starting = torch.zeros(audit.rows, dtype=torch.bool)
    starting[[1, 4]] = True
    expected = torch.where(starting.view(-1, 1, 1), fresh, carried)
    bound, off = tolerance(carried, fresh), 0.0
    said: dict[str, str] = {}
    for kind in KINDS:
        flags = torch.zeros_like(scenario.dones)
        flags[starting, CUT] = True
        adapter.reset()
        seen = play(adapter, scenario.with_starts(**{kind: flags})).numbers[:, CUT:]
        difference = max_difference(seen, expected)
        off = max(off, difference)
        if difference > bound:
            said[kind] = _explain(seen, carried, fresh, starting, bound)
    text = _told(said) or "a row that starts an episode puts out what a fresh policy does, and the others go on"
    notes = tuple(_poison(audit, adapter))
    return Verdict(off <= bound, off, bound, text, fix=_fix_for(said), notes=notes, evidence=_norms(audit))


def _kept_at_starts(audit: AuditContext, adapter: PolicyAdapter) -> float:
    """What the past changes where an episode starts, for a policy that remembers nothing elsewhere."""
    scenario, said = audit.scenario(55, steps=3), []
    flags = torch.zeros_like(scenario.dones)
    flags[:, 2] = True
    for each in (scenario, scenario.with_other_past(slice(None), 2, audit.generator(56), audit.spec)):
        adapter.reset()
        said.append(play(adapter, each.with_starts(dones=flags)).numbers[:, -1])
    adapter.reset()
    return max_difference(*said)


def _explain(seen: Tensor, carried: Tensor, fresh: Tensor, starting: Tensor, bound: float) -> str:
    """Which mistake it is. Each is [rows, steps from the start on, numbers]."""
    others = max_difference(seen[~starting], carried[~starting])
    if others > bound:
        if max_difference(seen[~starting], fresh[~starting]) <= bound:
            return "when one row starts an episode, all rows are cleared"
        return f"rows in the middle of their episode change by {others:.2g} when another one starts"
    first = max_difference(seen[starting, 0], fresh[starting, 0])
    if max_difference(seen[starting, 0], carried[starting, 0]) <= bound:
        if max_difference(seen[starting], carried[starting]) <= bound:
            return f"memory is not cleared at all; outputs are off by {first:.2g}"
        return f"memory is cleared too late: an episode's first observation still meets the old one, off by {first:.2g}"
    if first <= bound:
        later = max_difference(seen[starting], fresh[starting])
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


def _poison(audit: AuditContext, adapter: PolicyAdapter) -> list[str]:
    """A NaN in memory is gone after an episode start only if memory is filled, not multiplied, with zero."""
    if not isinstance(adapter, TdAdapter) or not adapter.memory_in_td:
        return []
    batch = audit.scenario(51, steps=1).batch(slice(0, audit.rows), 0)
    td = adapter.acting_td(batch)
    memory = {name: torch.full_like(value, torch.nan) for name, value in adapter.empty_memory(audit.rows).items()}
    td["memory"], td["dones"] = memory, torch.ones(audit.rows, dtype=torch.bool)
    if adapter.policy(td)["values"].isfinite().all():
        return []
    return ["a NaN in memory survives an episode start: clear with masked_fill, not by multiplying with a mask"]


def _norms(audit: AuditContext) -> dict[str, Tensor]:
    """Size of memory over some episodes, for the picture."""
    adapter, scenario = audit.adapter(), audit.scenario(52, rows=3, steps=24, end_chance=0.12)
    norms = []
    for step in range(scenario.steps):
        adapter.act(scenario.batch(slice(0, 3), step))
        memory_numbers = adapter.memory_numbers(3)
        if memory_numbers is None:
            return {}
        norms.append(memory_numbers.float().square().mean(1).sqrt())
    return {"memory_norm": torch.stack(norms, 1), "starts": scenario.starts.float()}


@torch.no_grad()
def boundary_learning(audit: AuditContext) -> Verdict:
    """Row i starts an episode at step i. From there on it must say what the rest of the segment says on its own."""
    steps = audit.steps
    adapter, segment = audit.adapter(), audit.segment(53, rows=steps, steps=steps + 1)
    memory = some_memory(audit, adapter, steps)
    plain = adapter.learn(segment, memory).numbers()[:, :steps]
    tails = [adapter.learn(segment.steps(step)).numbers() for step in range(steps)]  # from no memory
    diagonal = torch.eye(steps, dtype=torch.bool)
    bound = tolerance(plain, *tails)
    said: dict[str, str] = {}
    off = torch.zeros(steps, steps)
    for kind in KINDS:
        flags = torch.zeros_like(segment.dones)
        flags[:, :steps] = diagonal
        told = _with_starts(segment, kind, flags)
        seen = adapter.learn(told, memory).numbers()[:, :steps]
        expected = plain.clone()
        for step in range(steps):
            expected[step, step:] = tails[step][step, : steps - step]
        difference = abs_difference(seen, expected).amax(2)
        off = torch.maximum(off, difference)
        if difference.max() > bound:
            said[kind] = _explain_learning(difference, seen, plain, tails, bound)
    alone = _one_start(adapter, segment, memory, plain)
    measured = max(float(off.max()), alone)
    text = _told(said) or f"starts at every one of {steps} steps cut exactly there, for that row alone"
    if alone > bound and not said:
        text = f"a start in one row changes other rows by {alone:.2g}"
    return Verdict(measured <= bound, measured, bound, text, fix=_fix_for(said), evidence={"difference": off})


def _with_starts(segment: Segment, kind: str, flags: Tensor) -> Segment:
    return replace(segment.without_starts(), **{kind: flags})


def _one_start(adapter: PolicyAdapter, segment: Segment, memory: Any, plain: Tensor) -> float:
    flags = torch.zeros_like(segment.dones)
    flags[2, 3] = True
    seen = adapter.learn(_with_starts(segment, "dones", flags), memory).numbers()[:, : plain.shape[1]]
    others = torch.arange(len(plain)) != 2
    return max_difference(seen[others], plain[others])


@torch.no_grad()
def some_memory(audit: AuditContext, adapter: PolicyAdapter, rows: int) -> Any:
    """Memory that is not empty, where learning can be given one."""
    if not adapter.learns_row_subsets:
        return None
    play(adapter, audit.scenario(54, rows=rows, steps=3))
    return adapter.memory_of(torch.arange(rows))


def _explain_learning(difference: Tensor, seen: Tensor, plain: Tensor, tails: list[Tensor], bound: float) -> str:
    steps = len(difference)
    before = torch.ones(steps, steps).tril(-1).bool()
    row, step = divmod(int((difference > bound).flatten().nonzero()[0]), steps)
    first = f"first off in row {row} at step {step}, by {float(difference[row, step]):.2g}"
    if difference[before].max() > bound:
        return f"a start also changes outputs before it, or in other rows; {first}"
    inside = range(1, steps)
    if all(max_difference(seen[i, i:], plain[i, i:]) <= bound for i in inside):
        return f"memory is not cleared inside a segment, only at its first step if at all; {first}"
    late = all(max_difference(seen[i, i + 1 :], tails[i + 1][i, : steps - i - 1]) <= bound for i in range(1, steps - 1))
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
        fix_without_engram="Set h and c of the rows that are done to 0 before the LSTM sees their next observation, "
        "whether the episode was terminated or truncated.",
        needs_learning=False,
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
        fix_without_engram="Pass the episode starts of the whole sequence to the learning call, and set h and c of "
        "a row to 0 before every step where one starts: step by step, or by splitting sequences there.",
    ),
)
