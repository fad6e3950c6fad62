"""Do gradients stop where an episode starts, and otherwise reach as far back as memory does?"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engram.audit.adapters.base import PolicyAdapter, Segment
from engram.audit.checks.boundary import some_memory
from engram.audit.checks.gradient_causes import culprit, where_cut
from engram.audit.context import AuditContext
from engram.audit.finite_difference import (
    LearningCall,
    StepDerivative,
    declared_truncation,
    learning_call,
    step_derivatives,
)
from engram.audit.result import Check, DoesNotApplyError, Verdict, attempt
from engram.audit.scenario import random_observations
from engram.audit.weights import gradients_of, trainable

SAME_GRADIENT = 1e-4  # relative
NO_GRADIENT = (
    "Learning must not run under torch.no_grad() or torch.inference_mode(), and must not detach weights or what it "
    "returns. Weights that are not to be trained are declared with requires_grad_(False)."
)
WHOLE_SEGMENT = (
    "Run the whole segment through the recurrent layer in one graph. Detach memory only where it is stored between "
    "calls, not between the steps of a segment. A cut on purpose is declared by an attribute: burn_in = 8, "
    "tbptt_steps = 16."
)
OTHER_ROWS = "a start in one row detaches the memory of all rows"


def gradient_boundary(audit: AuditContext) -> Verdict:
    """Row i starts an episode at step i. Its past must not change the gradient of its outputs from there on."""
    steps = audit.steps
    adapter, segment = audit.adapter(), audit.segment(60, rows=steps, steps=steps)
    flags = torch.eye(steps, dtype=torch.bool)
    even = torch.arange(steps) % 2 == 0
    segment = replace(segment.without_starts(), dones=flags & even, truncateds=flags & ~even)
    memory = some_memory(audit, adapter, steps)
    other = random_observations(audit.spec, segment.shape, audit.generator(62))
    past = torch.ones(steps, steps).tril(-1).bool()
    observations = segment.observations.clone()
    observations[past] = other[past]
    changed = replace(segment, observations=observations)
    after = ~past
    crossing, size = _gradient_change(adapter, segment, changed, memory, after)
    measured = crossing / size if size else 0.0
    if not size:
        return Verdict(False, 0.0, SAME_GRADIENT, "learning gives no gradient at all", fix=NO_GRADIENT)
    finding = f"another past changes the gradient of what follows an episode start by {measured:.2g} of its size"
    cause = ""
    if measured > SAME_GRADIENT:
        crossed = []
        for step in range(1, steps):
            of_row = torch.arange(steps).view(-1, 1) == step  # row i starts at step i
            if _gradient_change(adapter, segment, changed, memory, after & of_row)[0] > SAME_GRADIENT * size:
                crossed.append(step)
        alone = (
            _gradient_change(adapter, segment[[row]], changed[[row]], _of_row(adapter, memory, row), after[[row]])[0]
            for row in range(1, steps)
        )
        if not adapter.learns_row_subsets or any(apart > SAME_GRADIENT * size for apart in alone):
            finding += f"; it crosses starts at steps {', '.join(map(str, crossed))} of {steps}" if crossed else ""
            line = attempt(
                culprit,
                lambda: _gradient_change(adapter, segment, changed, memory, after),
                lambda found: found[0] <= SAME_GRADIENT * found[1],
            )
            cause = (
                f"gradients cross episode starts: memory is cleared there outside the graph, by {line}" if line else ""
            )
        else:
            finding += "; but not in minibatches of one row: it comes from other rows"
            cause = "the gradient of a row depends on what other rows observe"
    return Verdict(measured <= SAME_GRADIENT, measured, SAME_GRADIENT, finding, cause=cause)


def _of_row(adapter: PolicyAdapter, memory: Any, row: int) -> Any:
    return None if memory is None else adapter.select_rows(memory, [row])


def _gradient_change(
    adapter: PolicyAdapter, one: Segment, other: Segment, memory: Any, where: Tensor
) -> tuple[float, float]:
    """The difference between the gradients of two segments' outputs at these steps, and their size."""
    one_gradient, other_gradient = (_gradient(adapter, segment, memory, where) for segment in (one, other))
    apart = torch.stack([(one_gradient[name] - other_gradient[name]).norm() for name in one_gradient]).norm()
    size = torch.stack([gradient.norm() for gradient in one_gradient.values()]).norm()
    return float(apart.nan_to_num(nan=torch.inf)), float(size)


def _gradient(adapter: PolicyAdapter, segment: Segment, memory: Any, where: Tensor) -> dict[str, Tensor]:
    torch.manual_seed(0)
    output = adapter.learn(segment, memory)
    return gradients_of(output.value[where].sum() + output.log_prob[where].sum(), trainable(adapter.policy))


def horizon(audit: AuditContext) -> Verdict:
    """From the last step of a segment back to its first: does the gradient reach as far as memory does?"""
    steps = audit.sizes.horizon
    call = learning_call(audit, steps)
    if not call.last_loss(call.run()).requires_grad:
        return Verdict(False, 0, steps - 1, "learning gives no gradient at all", at_least=True, fix=NO_GRADIENT)
    found = step_derivatives(call, probes(steps), only_missing=True)
    if found is None:
        raise DoesNotApplyError("no module's output belongs to a single step, so gradients cannot be followed")
    visible = call.precision.visible * max(abs(each.true) for each in found)
    remembered = [each.step for each in found if abs(each.true) > visible]
    memory_reach = steps - 1 - min(remembered, default=steps - 1)
    cut = _cut(found, visible)
    reach = memory_reach if cut is None else steps - 1 - cut
    evidence = {
        "gradient_reach": torch.tensor([abs(each.given) for each in found]),
        "gradient_steps": torch.tensor([each.step for each in found]),
    }
    finding = f"memory reaches {memory_reach} of {steps - 1} steps back, and so does the gradient"
    fix, passed, cause = "", cut is None, ""
    if cut is not None:
        exact = _first_reached(call, found, cut)
        reach = steps - 1 - exact
        declared = _declared(audit, exact, steps)
        passed = bool(declared)
        what = f"the gradient of the last of {steps} steps is cut before step {exact}: it reaches {reach} steps back,"
        if not found[-1].given:
            what = "the outputs of the last step have no gradient, not even to their own observation:"
        finding = f"{what} memory reaches {memory_reach}"
        if declared:
            finding += f"; {declared}, as declared"
        elif others := _other_rows(call, found, visible):
            finding, cause = finding + others, OTHER_ROWS
        else:
            cause = attempt(where_cut, audit, exact, steps)
    wanted = getattr(audit.policy, "memory_horizon", 0)
    if isinstance(wanted, int) and not isinstance(wanted, bool) and 0 < wanted <= steps - 1 and memory_reach < wanted:
        passed, fix = False, "Remember for as long as memory_horizon declares, or declare less."
        finding += f"; memory_horizon declares {wanted} steps"
        cause = cause or f"memory reaches {memory_reach} steps back, fewer than memory_horizon declares"
    bound = min(memory_reach, steps - 1)
    return Verdict(passed, reach, bound, finding, at_least=True, cause=cause, fix=fix, evidence=evidence)


def probes(steps: int) -> tuple[int, ...]:
    """The steps to examine: the last ones, and earlier ones at growing distances."""
    distances = (0, 1, 2, 3, 4, 6, 8, 11, 15, 16, 17, 23, 31, 32, 33, 47, 48, 63, 64, 96, 127)
    return tuple(sorted({steps - 1 - d for d in distances if d < steps} | {0, min(4, steps - 1), min(48, steps - 1)}))


def _cut(found: Sequence[StepDerivative], visible: float) -> int | None:
    """The first step that a gradient reaches, if it does not reach an earlier one that memory does."""
    reached = [each.step for each in found if each.given != 0]
    missed = [each.step for each in found if each.given == 0 and abs(each.true) > visible]
    if not missed:
        return None
    later = [step for step in reached if step > max(missed)]
    return min(later, default=found[-1].step)


def _first_reached(call: LearningCall, found: Sequence[StepDerivative], cut: int) -> int:
    """The exact step of the cut, between two probes."""
    low = max((each.step for each in found if each.step < cut), default=cut)
    while cut - low > 1:
        middle = (low + cut) // 2
        derivatives = step_derivatives(call, [middle], only_missing=True)
        if derivatives and derivatives[0].given != 0:
            cut = middle
        else:
            low = middle
    return cut


def _other_rows(call: LearningCall, found: Sequence[StepDerivative], visible: float) -> str:
    """Whether the cut is there only because other rows start an episode."""
    alone = call.without_starts()
    if _cut(step_derivatives(alone, [each.step for each in found], only_missing=True) or [], visible) is not None:
        return ""
    return f". Without episode starts in other rows it is not cut: {OTHER_ROWS}"


def _declared(audit: AuditContext, cut: int, steps: int) -> str:
    for name, value in declared_truncation(audit.policy).items():
        if cut == value or cut % value == 0 or steps - cut == value:
            return f"{name} is {value}"
    return ""


CHECKS = (
    Check(
        "gradient_boundary",
        "Does a gradient stop where an episode starts?",
        "Steps of one episode are credited with what happens in another: gradients are noisy and grow.",
        "Clear memory inside the graph: h.masked_fill(starts, 0). Assigning to h.data, or clearing under no_grad, "
        "zeroes the values but lets gradients pass.",
        ("_manage_lstm_state", "get_states", "_process_sequence", "forward"),
        gradient_boundary,
    ),
    Check(
        "horizon",
        "Does a gradient reach as far back in a segment as memory does?",
        "The policy cannot learn to remember for longer than gradients reach.",
        WHOLE_SEGMENT,
        ("forward", "get_states", "_process_sequence"),
        horizon,
    ),
)
