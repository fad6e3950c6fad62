"""Which past explains what a row does now: its own from another step on, that of another row, or none at all."""

# B rows, S steps, K numbers

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from engram.audit.adapters.base import PolicyAdapter
from engram.audit.checks.rehearsal import (
    Rehearsal,
    ids_of,
    learn_rows,
    minibatches_of,
    order_of,
    prepared,
    reference_outputs,
    scenario_of,
)
from engram.audit.checks.smallest_rehearsal import SHORT_WARMUP
from engram.audit.context import AuditContext
from engram.audit.difference import abs_difference, max_difference, tolerance
from engram.audit.scenario import Scenario, play

MAX_STEPS = 6000  # played to find a past: after that it stays unknown
MAX_SOURCES = 24  # rows that are tried as the source of another row's memory
AHEAD = 5  # steps by which a memory may be late or early
NO_START = "though no episode starts there"
MAX_ROWS = 8  # wrong rows whose past is looked for

LoneOutputs = Callable[[Scenario], Tensor]  # what a row gives at the last step of a scenario that it plays alone, [K]


class Past(NamedTuple):
    """A past that a row may have: steps of rows of a scenario, the last of which is the current step."""

    steps: tuple[tuple[int, int], ...]
    does: str  # what a row with this past does: "continues with the memory of row {}"
    source: int | None = None  # the row whose memory it is, if it is another


@torch.no_grad()
def acting_past(audit: AuditContext, case: Rehearsal) -> str:
    """The wrong past on which rows act that differ from the reference; empty if unknown."""
    adapter, scenario = prepared(audit, case), scenario_of(audit, case, 0)
    alone, references, numbers = adapter.copy(), {}, []
    for row in sorted({*range(min(case.rows, MAX_ROWS)), case.rows - 1}):
        references[row] = adapter.copy()
    for first, last in pairwise(_cuts(case, scenario)):
        part = scenario.part(first, last)
        numbers.append(play(adapter, part, order_of(audit, case, part, 0), ids_of(case)).numbers)
    seen = torch.cat(numbers, 1)
    wrong, bound = torch.zeros(case.rows, scenario.steps, dtype=torch.bool), tolerance(seen)
    for row, reference in references.items():
        wrong[row] = abs_difference(seen[row], reference_outputs(reference, scenario, row)).amax(-1) > bound
    return describe_past(lone_acting(alone), scenario, seen, wrong, bound)


@torch.no_grad()
def learning_past(audit: AuditContext, case: Rehearsal) -> str:
    """The wrong past from which learning computes the rows in which it differs from acting; empty if unknown."""
    rows, horizon = max(case.rows, MAX_ROWS), max(case.horizon, MAX_ROWS)
    more = case._replace(rows=rows, horizon=horizon, warmup=case.warmup or SHORT_WARMUP, segments=1)
    return next((past for each in (more, case) if (past := _learning_past(audit, each))), "")


@torch.no_grad()
def past_by_learning(audit: AuditContext) -> str:
    """The wrong past on which rows act in a simple segment where learning is right; empty if unknown."""
    scenario = audit.scenario(76, rows=4, steps=6)
    played, learner = play(audit.adapter(), scenario), audit.adapter()
    learned_numbers = learner.learn(scenario.segment(played.actions)).numbers()[..., :-1]
    seen, bound = played.numbers[..., : learned_numbers.shape[-1]], tolerance(learned_numbers)
    wrong = abs_difference(seen, learned_numbers).amax(-1) > bound
    wrong[:, :2] = False  # too early to tell one past from another
    return describe_past(lone_learning(learner, played.actions), scenario, seen, wrong, bound)


def _learning_past(audit: AuditContext, case: Rehearsal) -> str:
    adapter = prepared(audit, case)
    learner, alone, scenario, ids = adapter.copy(), adapter.copy(), scenario_of(audit, case, 0), ids_of(case)
    for first, last in pairwise(_cuts(case, scenario)):
        memory = adapter.memory_of(ids) if first else None
        part = scenario.part(first, last)
        played = play(adapter, part, order_of(audit, case, part, 0), ids)
        if first == 0 and case.warmup:
            continue
        segment, bound = part.segment(played.actions), tolerance(played.value, played.log_prob)
        seen, wrong = None, torch.zeros_like(played.value, dtype=torch.bool)
        for rows in minibatches_of(learner, case):
            with torch.set_grad_enabled(case.gradients):
                output = learn_rows(learner, segment, memory, rows, case.rows)
            numbers = output.numbers()[..., :-1].detach()
            if seen is None:
                seen = torch.zeros(case.rows, part.steps, numbers.shape[-1], dtype=numbers.dtype)
            seen[rows] = numbers
            apart = [
                abs_difference(getattr(output, name).detach(), getattr(played, name)[rows])
                for name in ("value", "log_prob")
            ]
            wrong[rows] |= torch.maximum(*apart) > bound
        if seen is not None and bool(wrong.any()):
            return describe_past(lone_acting(alone), scenario, seen, wrong, bound, first)
    return ""


def _cuts(case: Rehearsal, scenario: Scenario) -> list[int]:
    """The steps at which the warm-up and each segment begin or end."""
    return sorted({0, *range(case.warmup, scenario.steps, case.horizon), scenario.steps})


def describe_past(
    outputs: LoneOutputs, scenario: Scenario, seen: Tensor, wrong: Tensor, bound: float, first: int = 0
) -> str:
    """The past of the rows that are wrong at the first step at which any is; empty if no wrong past explains them.

    `seen` is [B, S, K] and `wrong` [B, S]; for learning, both are those of the segment that begins at step `first`.
    """
    if not bool(wrong.any()):
        return ""
    step = int(wrong.any(0).nonzero()[0])
    rows = wrong[:, step].nonzero().flatten().tolist()
    found: dict[int, Past] = {}
    for row in [*rows[: MAX_ROWS - 1], *rows[MAX_ROWS - 1 :][-1:]]:
        past = find_past(outputs, scenario, row, first + step, seen[row, step], bound, first)
        if past is None and not found:
            return ""
        if past is not None:
            found[row] = past
    return _sentence(found, len(rows), scenario.rows)


def lone_acting(adapter: PolicyAdapter) -> LoneOutputs:
    """Outputs of acting, from an empty memory."""

    def outputs(lone: Scenario) -> Tensor:
        adapter.reset()
        return play(adapter, lone).numbers[0, -1]

    return outputs


def lone_learning(adapter: PolicyAdapter, actions: Tensor) -> LoneOutputs:
    """Outputs of learning; the actions do not matter for what is compared."""

    def outputs(lone: Scenario) -> Tensor:
        taken = actions[:1, :1].expand(1, lone.steps, *actions.shape[2:])
        return adapter.learn(lone.segment(taken)).numbers()[0, -1, :-1]

    return outputs


def episode_start(scenario: Scenario, row: int, step: int) -> int:
    """The step at which the episode began that a row plays at this step."""
    starts = scenario.starts[row, : step + 1].nonzero().flatten().tolist()
    return starts[-1] if starts else 0


def wrong_pasts(scenario: Scenario, row: int, step: int, first: int) -> Iterator[Past]:
    """Wrong pasts, the simplest first. `first`: the step at which the segment begins; what is before it was acted."""
    began = episode_start(scenario, row, step)

    def own(start: int, stop: int = step + 1) -> tuple[tuple[int, int], ...]:
        return tuple((row, at) for at in range(start, stop))

    def without_flag(at: int) -> str:
        starting = [each for each in scenario.starts[:, at].nonzero().flatten().tolist() if each != row]
        return f"though an episode starts in row {starting[0]} there, not in this one" if starting else ""

    in_segment = f"step {step - first}" + (" of the segment" if first else "")
    if began < step and first != step:
        yield Past(own(step), f"has no memory at {in_segment}, {without_flag(step) or NO_START}")
    if first and began < first:
        yield Past(own(first), ", ".join(filter(None, ["begins the segment without memory", without_flag(first)])))
    for earlier in sorted({0, *scenario.starts[row].nonzero().flatten().tolist()}, reverse=True):
        if earlier < began:
            yield Past(own(earlier), f"continues with its memory from before the episode start at step {began - first}")
    if began < step:
        yield Past(
            own(began, step - 1) + own(step), "continues with its memory of the step before: the last is not kept"
        )
        yield Past(own(began, step) + own(step - 1), "takes the last observation twice")
    if first:
        yield from _wrong_start(scenario, row, step, first)
    yield from _of_others(scenario, row, step, first)
    for later in range(step - 1, began, -1):
        if later != first:
            yield Past(own(later), f"remembers nothing from before step {later - first}, {NO_START}")


def _wrong_start(scenario: Scenario, row: int, step: int, first: int) -> Iterator[Past]:
    """Segments that begin with another memory of the same row than the one before their first step."""
    began = episode_start(scenario, row, first - 1)
    in_segment = tuple((row, at) for at in range(first, step + 1))
    for end, whose in (
        (scenario.steps, "begins the segment with the current memory, from after it"),
        *(
            (first + n, f"begins the segment with the memory from after its first {n} steps: they are taken twice")
            for n in range(1, min(AHEAD, scenario.steps - first))
        ),
        *((first - n, f"begins the segment with the memory of {n} steps before it") for n in range(1, AHEAD)),
    ):
        if end > began:
            yield Past(tuple((row, at) for at in range(began, end)) + in_segment, whose)
    for later in range(first + 1, step + 1):
        again = tuple((row, at) for at in (*range(began, first), *range(later, step + 1)))
        yield Past(
            again, f"goes back, at step {later - first} of the segment, to the memory that the segment began with"
        )


def _of_others(scenario: Scenario, row: int, step: int, first: int) -> Iterator[Past]:
    """The memory of another row, at this step or about it."""
    began = episode_start(scenario, row, step)
    own = tuple((row, at) for at in range(max(first, began), step + 1))
    others = [each for each in (*range(MAX_SOURCES), scenario.rows - 1, row - 1) if 0 <= each < scenario.rows]
    for other in [each for each in dict.fromkeys(others) if each != row]:
        if first and began < first:
            start = episode_start(scenario, other, first - 1)
            before = tuple((other, at) for at in range(start, first))
            yield Past(before + own, "begins the segment with the memory of row {}", other)
        for last in (step - 1, step, step - 2, step + 1, step + 2, step - 3):
            if 0 <= last < scenario.steps:
                start = episode_start(scenario, other, last)
                before = tuple((other, at) for at in range(start, last + 1))
                yield Past((*before, (row, step)), "continues with the memory of row {}", other)


@torch.no_grad()
def find_past(
    outputs: LoneOutputs, scenario: Scenario, row: int, step: int, seen_K: Tensor, bound: float, first: int
) -> Past | None:
    """The wrong past with which a lone row gives these numbers: a value, and a distribution if there is one."""
    played = 0
    true = tuple((row, at) for at in range(episode_start(scenario, row, step), step + 1))
    if max_difference(outputs(_lone(scenario, true))[: len(seen_K)], seen_K) <= bound:
        return None
    for past in wrong_pasts(scenario, row, step, first):
        played += len(past.steps)
        if played > MAX_STEPS:
            return None
        if past.steps != true and max_difference(outputs(_lone(scenario, past.steps))[: len(seen_K)], seen_K) <= bound:
            return past
    return None


def _lone(scenario: Scenario, steps: Sequence[tuple[int, int]]) -> Scenario:
    """These steps as those of one row, of which the first may start an episode."""
    rows, at = (torch.tensor(each) for each in zip(*steps, strict=True))
    fields = {name: getattr(scenario, name)[rows, at].unsqueeze(0) for name in ("observations", "noise")}
    flags = torch.zeros(1, len(steps), dtype=torch.bool)
    flags[0, 0] = scenario.starts[steps[0]]
    return replace(scenario, dones=flags, truncateds=torch.zeros_like(flags), **fields)


def _sentence(found: dict[int, Past], wrong: int, rows: int) -> str:
    """Describes the past of `wrong` of all `rows`, from the pasts that were found for some of them."""
    row, past = next(iter(found.items()))
    if past.source is None:  # its own memory, from another step on
        if wrong == 1:
            return f"row {row} {past.does}"
        if wrong == rows and len(found) > 1:
            return f"every row {past.does}"
        return f"row {row} and {wrong - 1} other{'s' * (wrong > 2)} of {rows}: each {past.does}"
    does, sources = past.does.format(past.source), {other.source for other in found.values()}
    if len(found) > 2 and sources == {past.source}:
        return f"every row {does}" if wrong >= rows - 1 else f"rows from {row} on: each {does}"
    shifts = {other.source - each for each, other in found.items() if other.source is not None}
    if len(found) > 1 and len(shifts) == 1:  # every row has the memory of the row that is as far away
        last = max(found)
        return f"row {row} {does}, and so on to row {last} with that of row {found[last].source}"
    more = [each for each, other in found.items() if other.source is not None and each != row][:1]
    return f"row {row} {does}" + "".join(f", row {each} with that of row {found[each].source}" for each in more)
