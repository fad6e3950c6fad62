"""Does learning see what acting saw? The property that sums all of it up, and which part of it is broken."""

# B rows, T steps

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engram.audit.adapters.base import PolicyAdapter, Segment
from engram.audit.adapters.td import TdAdapter
from engram.audit.context import AuditContext, abs_difference, describe, max_difference, tolerance
from engram.audit.result import Check, Verdict
from engram.audit.scenario import error_note, play, shuffled_slices, whole_batches


class Play(NamedTuple):
    """A way of playing and learning."""

    ends: float = 0.0  # chance of an episode end, per step
    slices: bool = False  # batches uneven and out of order
    segments: int = 1  # per rollout
    rollouts: int = 1
    horizon: int = 6
    some_rows: bool = False  # minibatches of some rows, in another order; and of one row


ALL = Play(ends=0.2, slices=True, segments=2, rollouts=2, some_rows=True)
CAUSES = {  # one thing at a time, simplest first: what it means if that alone differs
    "plain": (
        Play(),
        "acting and learning compute different things, even from an empty memory and without episode ends",
    ),
    "ends": (Play(ends=0.25), "episodes that end inside a segment: learning does not clear memory where acting did"),
    "segments": (
        Play(segments=2),
        "the memory that a segment begins with: the second segment of a rollout is not learned from the memory "
        "acting had",
    ),
    "rollouts": (Play(rollouts=2), "the memory carried from one rollout to the next"),
    "slices": (Play(slices=True), "the order and size of the batches that arrive while acting"),
    "rows": (Play(some_rows=True), "minibatches of one row, or of some rows in another order"),
    "horizon of 1": (Play(horizon=1), "segments of a single step"),
    "horizon of 9": (Play(horizon=9), "longer segments"),
}


class Difference(NamedTuple):
    """[B, S] over all steps, log-probabilities and values apart, and how far apart equal numbers might be."""

    log_prob: Tensor
    value: Tensor
    bound: float

    @property
    def both(self) -> Tensor:
        return torch.maximum(self.log_prob, self.value)


def replay(audit: AuditContext) -> Verdict:
    """Everything at once; and only if that differs, one thing at a time, to tell why."""
    found: Difference | None
    try:
        found = difference(audit, ALL)
        measured, bound, said = float(found.both.max()), found.bound, ""
        if measured <= bound:
            others = [difference(audit, way) for way in (Play(horizon=1, segments=2), Play(horizon=9, ends=0.1))]
            measured = max(measured, *(float(other.both.max()) for other in others))
    except Exception as error:
        found, measured, bound, said = _with_less(audit), float("inf"), 0.0, f"it raised {describe(error)}"
    if measured <= bound:
        said = (
            f"log-probabilities and values of replayed rollouts differ by at most {measured:.2g} from those of acting"
        )
        return Verdict(True, measured, bound, said, evidence={"difference": found.both} if found else {})
    if found is not None and found.both.max() > found.bound:
        said += ("; " if said else "") + _first(found)
    causes = list(_causes(audit))
    said += "".join(f"; cause: {text}" for text in causes)
    evidence = {} if found is None else {"difference": found.both}
    fixes = [fix for cause in causes for text, fix in FIXES.items() if cause.startswith(text)]
    fix_without_engram = [fix for cause in causes for text, fix in ELSEWHERE.items() if cause.startswith(text)]
    said = said.lstrip("; ")
    return Verdict(
        False,
        measured,
        bound,
        said,
        fix=" ".join(fixes),
        fix_without_engram=" ".join(fix_without_engram),
        evidence=evidence,
    )


def _with_less(audit: AuditContext) -> Difference | None:
    """What can still be compared of a policy that cannot be played with all of it."""
    for way in (ALL._replace(slices=False, some_rows=False), CAUSES["ends"][0], CAUSES["plain"][0]):
        try:
            return difference(audit, way)
        except Exception:
            continue
    return None


def difference(audit: AuditContext, way: Play) -> Difference:
    """Between what was said in acting and in reway."""
    adapter, learner = audit.adapter(own_mode=True), audit.adapter(own_mode=True)
    steps = way.horizon * way.segments
    log_probs, values, bound = [], [], 0.0
    for rollout in range(way.rollouts):
        adapter.begin_rollout()
        scenario = audit.scenario(80 + rollout, steps=steps, end_chance=way.ends)
        for start in range(0, steps, way.horizon):
            part = scenario.part(start, start + way.horizon)
            first_of_all = start == 0 and (rollout == 0 or adapter.resets_between_rollouts)
            memory = None if first_of_all else adapter.memory_of(torch.arange(audit.rows))
            span = range(way.horizon)
            schedule = (
                shuffled_slices(audit.rows, span, audit.generator(rollout))
                if way.slices
                else whole_batches(audit.rows, span)
            )
            with torch.no_grad():
                lived = play(adapter, part, schedule)
            segment = part.segment(lived.actions)
            with error_note("learning from what was played"):
                answer = learner.learn(segment, memory, after_acting=True)
            seen = [(answer.log_prob.detach(), answer.value.detach())]
            if way.some_rows and learner.learns_row_subsets:
                seen.append(_in_parts(learner, segment, memory))
            log_probs.append(torch.stack([abs_difference(log_prob, lived.log_prob) for log_prob, _ in seen]).amax(0))
            values.append(torch.stack([abs_difference(value, lived.value) for _, value in seen]).amax(0))
            bound = max(bound, tolerance(lived.log_prob, lived.value))
    return Difference(torch.cat(log_probs, 1), torch.cat(values, 1), bound)


def _in_parts(learner: PolicyAdapter, segment: Segment, memory: Any) -> tuple[Tensor, Tensor]:
    """The same by minibatches: one row alone, and the others in reverse."""
    rows = segment.shape[0]
    log_prob, value = torch.full(segment.shape, torch.nan), torch.full(segment.shape, torch.nan)
    for part in ([2], [row for row in reversed(range(rows)) if row != 2]):
        with error_note(f"learning from a minibatch of {len(part)} rows"):
            start = None if memory is None else learner.select_rows(memory, part)
            answer = learner.learn(segment[part], start, after_acting=True)
        log_prob[part], value[part] = answer.log_prob.detach().float(), answer.value.detach().float()
    return log_prob, value


def _first(found: Difference) -> str:
    off = found.both > found.bound
    step = int(off.any(0).nonzero()[0])
    row = int(off[:, step].nonzero()[0])
    share = float(off.float().mean())
    apart = float(found.both[row, step])
    return f"{share:.0%} of what is replayed is off, first in row {row} at step {step}, by {apart:.2g}"


def _causes(audit: AuditContext) -> Iterator[str]:
    """What explains it: randomness and hidden state first, then one thing at a time."""
    if not _same_twice(audit, reseeded=True):
        yield STATISTICS + ", ".join(moved) if (moved := _moved_buffers(audit)) else LEFT_OVER
        return
    if not _same_twice(audit, reseeded=False):
        yield RANDOM
        return
    if _changes_by_itself(audit):
        yield HIDDEN
        return
    for name, (way, text) in CAUSES.items():
        try:
            found = difference(audit, way)
        except Exception as error:
            yield f"{text} (it raises {describe(error)})"
            continue
        if found.both.max() > found.bound:
            only = ""
            if name == "plain" and found.value.max() <= found.bound:
                only = "; only log-probabilities differ, so it is how an action becomes one"
            yield text + only
            if name == "plain":
                return


@torch.no_grad()
def _moved_buffers(audit: AuditContext) -> list[str]:
    """Buffers saved with the weights that a learning call changes."""
    adapter = audit.adapter(own_mode=True)
    names = dict(adapter.policy.named_buffers()).keys() & adapter.policy.state_dict().keys()
    before = {name: value.clone() for name, value in adapter.policy.named_buffers() if name in names}
    adapter.learn(audit.segment(85), after_acting=True)
    after = dict(adapter.policy.named_buffers())
    return [name for name, value in before.items() if not torch.equal(after[name], value)]


@torch.no_grad()
def _same_twice(audit: AuditContext, reseeded: bool) -> bool:
    """Whether the same learning call gives the same numbers again."""
    adapter, segment, said = audit.adapter(own_mode=True), audit.segment(85), []
    for _ in range(2):
        if reseeded:
            torch.manual_seed(audit.seed)
        said.append(adapter.learn(segment, after_acting=True).numbers())
    return max_difference(said[0], said[1]) <= tolerance(said[0])


@torch.no_grad()
def _changes_by_itself(audit: AuditContext) -> bool:
    """Whether the same story, from an empty memory, is answered differently the second time."""
    adapter, scenario = audit.adapter(own_mode=True), audit.scenario(86)
    said = []
    for _ in range(2):
        said.append(play(adapter, scenario).numbers)
        if isinstance(adapter, TdAdapter) and callable(getattr(adapter.policy, "reset_memory", None)):
            adapter.policy.reset_memory()  # type: ignore[operator]
        else:
            adapter.reset()
    return max_difference(said[0], said[1]) > tolerance(said[0])


LEFT_OVER = "the same learning call gives other numbers the second time: it begins with what the first one left behind"
STATISTICS = "the same learning call gives other numbers the second time, because each one changes "
RANDOM = "the same learning call gives other numbers each time: something in it is random, such as dropout"
HIDDEN = "the same story is answered differently the second time: something is kept that reset_memory() does not clear"
FIXES = {
    LEFT_OVER: "A learning call must begin with the memory it is given (td['memory', 'lstm']; self._manage_lstm_state "
    "reads it) and must store nothing.",
    STATISTICS: "Statistics must not be updated by the calls themselves: freeze them while a rollout is played and "
    "learned from, and use normalisations that do not depend on the batch (LayerNorm, not BatchNorm).",
    RANDOM: "Take dropout and other noise out of the policy (nn.LSTM(dropout=…) too): PPO compares log-probabilities "
    "of acting and learning, and noise in either is taken for a change of policy.",
    HIDDEN: "Whatever a policy remembers, reset_memory() has to clear. Statistics of observations must not be updated "
    "by the calls themselves: freeze them while a rollout is played and learned from, and use normalisations that do "
    "not depend on the batch (LayerNorm, not BatchNorm).",
    CAUSES["ends"][1]: "Clear memory inside the segment wherever dones | truncateds, as boundary_learning says.",
    CAUSES["segments"][1]: "Learn a segment from the memory its rows had before its first step: it comes in "
    "td['memory', 'lstm'] ([B, T, layers, size], the same for all T); self._manage_lstm_state reads it.",
    CAUSES["rollouts"][
        1
    ]: "Learn a segment from the memory its rows had before its first step, also at the beginning of a "
    "rollout: it comes in td['memory', 'lstm']; self._manage_lstm_state reads it.",
    CAUSES["slices"][1]: "Keep memory by environment row, as row_isolation says.",
    CAUSES["plain"][1]: "Acting and learning must be the same computation: the same encoder, time first into the LSTM "
    "([T, B, features]), the same flattening of rows and steps for actions and outputs.",
}

ELSEWHERE = {
    **{text: FIXES[text] for text in (STATISTICS, RANDOM, HIDDEN, CAUSES["ends"][1], CAUSES["plain"][1])},
    CAUSES["segments"][
        1
    ]: "Store the state that each segment begins with while acting, and learn from it, not from zero.",
}

CHECKS = (
    Check(
        "replay",
        "Does replaying a rollout, before any update, give back the log-probabilities and values it was played with?",
        "Learning corrects a policy that never acted: its ratios are wrong from the first update, and training "
        "plateaus and "
        "collapses although every single part looks right.",
        "See the causes: each has a check of its own that says where and how.",
        ("forward", "get_action_and_value", "evaluate_actions"),
        replay,
    ),
)
