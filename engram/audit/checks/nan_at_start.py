"""Is a NaN in memory gone after an episode start, and does it stay in its row until then?"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engram.audit.adapters.base import PolicyAdapter
from engram.audit.adapters.external_state import leaves, map_state
from engram.audit.checks.start_causes import AFTER
from engram.audit.context import AuditContext
from engram.audit.difference import max_difference, tolerance
from engram.audit.result import Check, DoesNotApplyError, Verdict
from engram.audit.scenario import Scenario, play, random_actions

STEPS_WITH_NAN = 2  # before an episode starts
DOUBLED = (8, 16, 32)  # steps of segments whose operations are counted
LONG = 72  # steps after which a NaN has left any window of usual size


@torch.no_grad()
def nan_at_start(audit: AuditContext) -> Verdict:
    """A NaN in memory is gone after an episode start only if memory is replaced, not multiplied by zero."""
    audit.needs_memory()
    adapter = audit.adapter()
    play(adapter, audit.fresh_start(audit.scenario(51, steps=AFTER)))
    if not leaves(adapter.memory_of(audit.ids)):
        raise DoesNotApplyError("its training loop stores no memory that could hold a NaN")
    kinds = {"acting": _acting_spoiled} | ({} if audit.learning_error else {"learning": _learning_spoiled})
    spoiled = [name for name, spoils in kinds.items() if spoils(audit, AFTER)]
    if not spoiled:
        return _elsewhere(audit, list(kinds))
    # In learning, a segment's steps are computed together: only acting shows whether a NaN leaves.
    if "acting" in spoiled and not _acting_spoiled(audit, LONG):
        note = (
            f"in {' and '.join(spoiled)}, it reaches outputs until it leaves the window: masked attention multiplies "
            "it by 0. torch.where(starts, 0, window) would replace it"
        )
        return Verdict(True, 0, 0, "a NaN in memory is gone some steps after an episode start", notes=(note,))
    text = f"a NaN in memory survives an episode start in {' and '.join(spoiled)}: memory is multiplied, not replaced"
    return Verdict(False, len(spoiled), 0, text)


def _elsewhere(audit: AuditContext, kinds: list[str]) -> Verdict:
    """A NaN that has been in memory for some steps, and one in the memory of another row."""
    late = [kind for kind in kinds if _survives_a_later_start(audit, kind)]
    if late == ["learning"] and not _learns_step_by_step(audit):
        note = (
            "in learning, it reaches outputs after a start in the same segment: a scan or masked attention multiplies "
            "it by 0. The loss of that row is NaN before the start, too"
        )
        return Verdict(True, 0, 0, "a NaN in memory is gone after an episode start", notes=(note,))
    if late:
        text = f"a NaN that has been in memory for {STEPS_WITH_NAN} steps survives an episode start"
        return Verdict(False, len(late), 0, f"{text} in {' and '.join(late)}: memory is multiplied, not replaced")
    others = [kind for kind in kinds if _spoils_other_rows(audit, kind)]
    if others:
        text = f"a NaN in the memory of one row changes other rows in {' and '.join(others)}"
        cause = "a NaN in the memory of one row changes the memory of others, where no episode starts"
        return Verdict(False, len(others), 0, text, cause=cause, fix=OTHERS_FIX, fix_without_engram=OTHERS_FIX)
    return Verdict(True, 0, 0, "a NaN in memory is gone after an episode start, and stays in its row until then")


def _survives_a_later_start(audit: AuditContext, kind: str) -> bool:
    """Whether a NaN survives a start STEPS_WITH_NAN steps after it. False if the policy refuses to compute with it."""
    scenario = audit.scenario(51, steps=STEPS_WITH_NAN + AFTER)
    flags = torch.zeros_like(scenario.dones)
    flags[:, STEPS_WITH_NAN] = True
    clean, poisoned = _after_memory(audit, kind, scenario.with_starts(dones=flags), audit.ids)
    return poisoned is not None and max_difference(poisoned[:, STEPS_WITH_NAN:], clean[:, STEPS_WITH_NAN:]) > tolerance(
        clean
    )


def _learns_step_by_step(audit: AuditContext) -> bool:
    """Whether the number of torch operations grows with the steps, as in a loop.

    A parallel scan adds the same number for every doubling of the steps, attention none.
    """
    counts = []
    for steps in DOUBLED:
        adapter = audit.adapter()
        play(adapter, audit.scenario(52, steps=AFTER))
        segment, memory = audit.segment(53, steps=steps), adapter.memory_of(audit.ids)
        with CountOperations() as operations:
            adapter.learn(segment, memory)
        counts.append(operations.count)
    first, second = counts[1] - counts[0], counts[2] - counts[1]
    return second > 1.5 * first > 0


class CountOperations(TorchDispatchMode):
    """Counts the calls of torch operations."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def _spoils_other_rows(audit: AuditContext, kind: str) -> bool:
    """Whether a NaN in the memory of row 1 alone reaches other rows, none of which starts an episode."""
    if not audit.original.learns_row_subsets:
        return False
    others = torch.arange(audit.rows) != 1
    clean, poisoned = _after_memory(audit, kind, audit.scenario(51, steps=AFTER), [1])
    return poisoned is not None and max_difference(poisoned[others], clean[others]) > tolerance(clean)


def _after_memory(audit: AuditContext, kind: str, scenario: Scenario, rows: list[int]) -> tuple[Tensor, Tensor | None]:
    """Outputs from memory that is right, and from one with a NaN in these rows; None if the policy refuses that."""
    adapter, ids = audit.adapter(), audit.ids
    play(adapter, audit.scenario(52, steps=AFTER))
    other = adapter.copy()
    other.change_memory(rows, _poison)

    def outputs(of: PolicyAdapter) -> Tensor:
        if kind == "acting":
            return play(of, scenario).numbers
        actions = random_actions(audit.spec, (audit.rows, scenario.steps), audit.generator(53))
        return of.learn(scenario.segment(actions), of.memory_of(ids)).numbers()

    clean = outputs(adapter)
    try:
        return clean, outputs(other)
    except Exception:  # torch's distributions refuse a NaN
        return clean, None


def _acting_spoiled(audit: AuditContext, steps: int) -> bool:
    """Whether a NaN in memory shows after an episode start, in any of the steps, or if there are many, in the last."""
    adapter, ids = audit.adapter(), audit.ids
    scenario = audit.fresh_start(audit.scenario(51, steps=steps))
    play(adapter, audit.scenario(52, steps=AFTER))
    poisoned = adapter.copy()
    poisoned.change_memory(ids, _poison)
    return _spoiled(
        lambda: play(poisoned, scenario).numbers[:, _last(steps)], play(adapter, scenario).numbers[:, _last(steps)]
    )


def _learning_spoiled(audit: AuditContext, steps: int) -> bool:
    adapter, ids = audit.adapter(), audit.ids
    play(adapter, audit.scenario(52, steps=AFTER))
    memory = adapter.memory_of(ids)
    segment = audit.fresh_start(audit.segment(51, steps=steps))
    clean = adapter.learn(segment, memory).numbers()[:, _last(steps)]
    return _spoiled(lambda: adapter.learn(segment, map_state(_poison, memory)).numbers()[:, _last(steps)], clean)


def _last(steps: int) -> slice:
    """All steps after a start, or only the last, to see whether a NaN is still there."""
    return slice(None) if steps <= AFTER else slice(steps - 1, None)


def _spoiled(call: Callable[[], Tensor], clean: Tensor) -> bool:
    """Whether outputs differ from these, or the policy refuses to compute them, as torch's distributions do."""
    try:
        outputs = call()
    except ValueError as error:
        if "nan" not in str(error).lower():
            raise
        return True
    return max_difference(outputs, clean) > tolerance(clean)


def _poison(part: Tensor) -> Tensor:
    return torch.full_like(part, torch.nan) if part.is_floating_point() else part


OTHERS_FIX = "Judge a NaN row by row: no any() over all rows, which clears or spoils the memory of the others too."

CHECKS = (
    Check(
        "nan_at_start",
        "Is a NaN in memory gone after the start of an episode, and does it stay in its row until then?",
        "One NaN in one environment stays in that row for ever, and reaches the weights with the next update.",
        "Replace memory, do not multiply it: h.masked_fill(starts, 0) or torch.where(starts, 0, h). NaN * 0 is NaN.",
        ("clear", "_manage_lstm_state", "get_states", "_process_sequence", "forward_eval", "forward"),
        nan_at_start,
        needs_learning=False,
    ),
)
