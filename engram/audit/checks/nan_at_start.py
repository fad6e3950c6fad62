"""Is a NaN in memory gone after an episode start?"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from engram.audit.adapters.row_state import leaves, map_state
from engram.audit.checks.boundary import AFTER
from engram.audit.context import AuditContext
from engram.audit.difference import max_difference, tolerance
from engram.audit.result import Check, DoesNotApplyError, Verdict
from engram.audit.scenario import play


@torch.no_grad()
def nan_at_start(audit: AuditContext) -> Verdict:
    """A NaN in memory is gone after an episode start only if memory is replaced, not multiplied by zero."""
    audit.needs_memory()
    adapter, scenario = audit.adapter(), audit.scenario(51, steps=AFTER)
    ids = list(range(audit.rows))
    fresh = play(adapter, audit.fresh_start(scenario)).numbers
    memory = adapter.memory_of(ids)
    if not leaves(memory):
        raise DoesNotApplyError("its training loop stores no memory that could hold a NaN")
    poisoned = map_state(_poison, memory)
    flags = torch.zeros_like(scenario.dones)
    flags[:, 0] = True
    flagged = scenario.with_starts(dones=flags)
    findings = []
    adapter.change_memory(ids, _poison)
    if _spoiled(lambda: play(adapter, flagged).numbers, fresh):
        findings.append("acting")
    if not audit.learning_error:
        segment = replace(audit.segment(51, steps=AFTER), dones=flags, truncateds=torch.zeros_like(flags))
        clean = adapter.learn(segment, memory).numbers()
        if _spoiled(lambda: adapter.learn(segment, poisoned).numbers(), clean):
            findings.append("learning")
    if not findings:
        return Verdict(True, 0, 0, "a NaN in memory is gone after an episode start")
    text = f"a NaN in memory survives an episode start in {' and '.join(findings)}: memory is multiplied, not replaced"
    return Verdict(False, len(findings), 0, text)


def _spoiled(call: Callable[[], Tensor], clean: Tensor) -> bool:
    """Whether outputs differ from these, or the policy refuses to compute them, as torch's distributions do."""
    try:
        return max_difference(call(), clean) > tolerance(clean)
    except ValueError as error:
        if "nan" not in str(error).lower():
            raise
        return True


def _poison(part: Tensor) -> Tensor:
    return torch.full_like(part, torch.nan) if part.is_floating_point() else part


CHECKS = (
    Check(
        "nan_at_start",
        "Is a NaN in memory gone after the start of an episode?",
        "One NaN in one environment stays in that row for ever, and reaches the weights with the next update.",
        "Replace memory, do not multiply it: h.masked_fill(starts, 0) or torch.where(starts, 0, h). NaN * 0 is NaN.",
        ("clear", "_manage_lstm_state", "get_states", "_process_sequence", "forward_eval", "forward"),
        nan_at_start,
        needs_learning=False,
    ),
)
