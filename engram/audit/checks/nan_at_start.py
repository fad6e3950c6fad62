"""Is a NaN in memory gone after an episode start?"""

from collections.abc import Callable

import torch
from torch import Tensor

from engram.audit.adapters.row_state import leaves, map_state
from engram.audit.checks.boundary import AFTER
from engram.audit.context import AuditContext
from engram.audit.difference import max_difference, tolerance
from engram.audit.result import Check, DoesNotApplyError, Verdict
from engram.audit.scenario import play

LONG = 72  # steps after which a NaN has left any window of usual size


@torch.no_grad()
def nan_at_start(audit: AuditContext) -> Verdict:
    """A NaN in memory is gone after an episode start only if memory is replaced, not multiplied by zero."""
    audit.needs_memory()
    adapter = audit.adapter()
    play(adapter, audit.fresh_start(audit.scenario(51, steps=AFTER)))
    if not leaves(adapter.memory_of(list(range(audit.rows)))):
        raise DoesNotApplyError("its training loop stores no memory that could hold a NaN")
    kinds = {"acting": _acting_spoiled} | ({} if audit.learning_error else {"learning": _learning_spoiled})
    spoiled = [name for name, spoils in kinds.items() if spoils(audit, AFTER)]
    if not spoiled:
        return Verdict(True, 0, 0, "a NaN in memory is gone after an episode start")
    lasting = [name for name in spoiled if kinds[name](audit, LONG)]
    if not lasting:
        note = (
            f"in {' and '.join(spoiled)}, it reaches outputs until it leaves the window: masked attention multiplies "
            "it by 0. torch.where(starts, 0, window) would replace it"
        )
        return Verdict(True, 0, 0, "a NaN in memory is gone some steps after an episode start", notes=(note,))
    text = f"a NaN in memory survives an episode start in {' and '.join(lasting)}: memory is multiplied, not replaced"
    return Verdict(False, len(lasting), 0, text)


def _acting_spoiled(audit: AuditContext, steps: int) -> bool:
    """Whether a NaN in memory shows in the last outputs, this many steps after an episode start."""
    adapter, ids = audit.adapter(), list(range(audit.rows))
    scenario = audit.fresh_start(audit.scenario(51, steps=steps))
    play(adapter, audit.scenario(52, steps=AFTER))
    poisoned = adapter.copy()
    poisoned.change_memory(ids, _poison)
    return _spoiled(lambda: play(poisoned, scenario).numbers[:, _last(steps)], play(adapter, scenario).numbers)


def _learning_spoiled(audit: AuditContext, steps: int) -> bool:
    adapter, ids = audit.adapter(), list(range(audit.rows))
    play(adapter, audit.scenario(52, steps=AFTER))
    memory = adapter.memory_of(ids)
    segment = audit.fresh_start(audit.segment(51, steps=steps))
    clean = adapter.learn(segment, memory).numbers()
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
    return max_difference(outputs, clean[:, -outputs.shape[1] :]) > tolerance(clean)


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
