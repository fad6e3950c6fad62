"""Do gradients stop where an episode starts?"""

# B rows, T steps

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engram.audit.adapters.base import PolicyAdapter, PolicyOutput, Segment
from engram.audit.checks.boundary import some_memory
from engram.audit.checks.gradient_source import culprit
from engram.audit.checks.horizon import NO_GRADIENT
from engram.audit.context import AuditContext
from engram.audit.result import Check, Verdict, attempt
from engram.audit.scenario import random_observations

SAME_GRADIENT = 1e-4  # relative


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
        crossed = [
            step
            for step in range(1, steps)
            if _gradient_change(adapter, segment, changed, memory, after & (torch.arange(steps) == step).view(-1, 1))[0]
            > SAME_GRADIENT * size
        ]
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
    gradients = [_gradient(adapter, segment, memory, where) for segment in (one, other)]
    apart = torch.stack([(a - b).norm() for a, b in zip(*gradients, strict=True)]).norm()
    return float(apart.nan_to_num(nan=torch.inf)), float(torch.stack([g.norm() for g in gradients[0]]).norm())


def _gradient(adapter: PolicyAdapter, segment: Segment, memory: Any, where: Tensor) -> list[Tensor]:
    torch.manual_seed(0)
    output: PolicyOutput = adapter.learn(segment, memory)
    total = output.value[where].sum() + output.log_prob[where].sum()
    parameters = [p for p in adapter.policy.parameters() if p.requires_grad]
    if not total.requires_grad:
        return [torch.zeros_like(p) for p in parameters]
    gradients = torch.autograd.grad(total, parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]


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
)
