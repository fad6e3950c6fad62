"""How far back does a gradient reach, and does it stop where an episode starts?"""

# B rows, T steps

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engram.audit.adapters.base import PolicyAdapter, PolicyOutput, Segment
from engram.audit.checks.boundary import some_memory
from engram.audit.context import AuditContext
from engram.audit.gradient_tap import find_gradient_tap, gradient_per_step
from engram.audit.result import Check, DoesNotApplyError, Verdict
from engram.audit.scenario import random_observations

HORIZON = 40  # longer than the usual places where people cut a gradient: every 8, 16 or 32 steps
PROBES = (0, 3, 6, 7, 8, 15, 16, 23, 24, 31, 32, 36, 38, 39)  # steps that are looked at, where each takes a call
VANISHED = 1e-30  # a gradient that dwindles to nothing from here was not cut
SAME_GRADIENT = 1e-4  # of the gradient's size


def gradient_boundary(audit: AuditContext) -> Verdict:
    """Row i starts an episode at step i. What it saw before must not change the gradient of what it says from there."""
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
    crossing, size = _difference(adapter, segment, changed, memory, after)
    measured = crossing / size if size else 0.0
    if not size:
        return Verdict(False, 0.0, SAME_GRADIENT, "learning gives no gradient at all", fix=NO_GRADIENT)
    said = f"another past changes the gradient of what follows an episode start by {measured:.2g} of its size"
    if measured > SAME_GRADIENT:
        found = [
            step
            for step in range(1, steps)
            if _difference(adapter, segment, changed, memory, after & (torch.arange(steps) == step).view(-1, 1))[0]
            > SAME_GRADIENT * size
        ]
        said += f"; it crosses starts at steps {', '.join(map(str, found))} of {steps}" if found else ""
    return Verdict(measured <= SAME_GRADIENT, measured, SAME_GRADIENT, said)


def _difference(
    adapter: PolicyAdapter, one: Segment, other: Segment, memory: Any, where: Tensor
) -> tuple[float, float]:
    """How far apart the two gradients of what is said at these places are, and how large they are."""
    gradients = [_gradient(adapter, segment, memory, where) for segment in (one, other)]
    apart = torch.stack([(a - b).norm() for a, b in zip(*gradients, strict=True)]).norm()
    return float(apart.nan_to_num(nan=torch.inf)), float(torch.stack([g.norm() for g in gradients[0]]).norm())


def _gradient(adapter: PolicyAdapter, segment: Segment, memory: Any, where: Tensor) -> list[Tensor]:
    torch.manual_seed(0)
    said = total(adapter.learn(segment, memory), where)
    parameters = [p for p in adapter.policy.parameters() if p.requires_grad]
    if not said.requires_grad:
        return [torch.zeros_like(p) for p in parameters]
    gradients = torch.autograd.grad(said, parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]


def total(answer: PolicyOutput, where: Tensor) -> Tensor:
    """A number made of all that is said at these places [B, T]."""
    return answer.value[where].sum() + answer.log_prob[where].sum()


def horizon(audit: AuditContext) -> Verdict:
    """From the last step of a segment back to its first."""
    row = 1
    adapter, segment = audit.adapter(), audit.segment(63, rows=3, steps=HORIZON)
    last = torch.zeros(segment.shape, dtype=torch.bool)
    last[row, -1] = True
    if not total(adapter.learn(segment), last).requires_grad:
        return Verdict(False, 0, HORIZON - 1, "learning gives no gradient at all", at_least=True, fix=NO_GRADIENT)
    steps, sizes = tuple(range(HORIZON)), _from_observations(adapter, segment, row, last)
    if sizes is None:
        steps = PROBES
        tap = find_gradient_tap(adapter, segment, row, steps, audit.spec, audit.generator(65))
        if tap is None:
            raise DoesNotApplyError(
                "no module of the policy puts out numbers that belong to one step, so gradients cannot be followed"
            )
        sizes = gradient_per_step(adapter, segment, tap, lambda answer: total(answer, last))
    cut = _cut(sizes)
    reach = HORIZON - 1 - (0 if cut is None else steps[min(cut + 1, len(steps) - 1)])
    said = f"a gradient from the last of {HORIZON} steps reaches {reach} steps back, {HORIZON - 1} are there"
    passed = cut is None and bool(sizes.isfinite().all())
    if passed and sizes[0] < 1e-6 * sizes[-1]:
        said += f", weakly: the first step's is {float(sizes[0] / sizes[-1]):.1g} of the last one's"
    evidence = {"gradient_reach": sizes.detach(), "gradient_steps": torch.tensor(steps)}
    return Verdict(passed, reach, HORIZON - 1, said, at_least=True, evidence=evidence)


def _cut(sizes: Tensor) -> int | None:
    """The latest place that no gradient reaches, though it did not dwindle to nothing on the way; None: all are."""
    for source_location in reversed(range(len(sizes))):
        if not sizes[source_location] > 0:
            dwindled = source_location + 1 < len(sizes) and float(sizes[source_location + 1]) < VANISHED
            return None if dwindled else source_location
    return None


def _from_observations(adapter: PolicyAdapter, segment: Segment, row: int, last: Tensor) -> Tensor | None:
    """The gradient at the observations themselves, where they are numbers that have one."""
    if not segment.observations.is_floating_point():
        return None
    observations = segment.observations.clone().requires_grad_()
    answer = total(adapter.learn(replace(segment, observations=observations.clone())), last)
    (gradient,) = torch.autograd.grad(answer, [observations], allow_unused=True)
    return None if gradient is None else gradient[row].flatten(1).norm(dim=1)


NO_GRADIENT = (
    "Learning must not run under torch.no_grad() or torch.inference_mode(), and must not detach what it returns."
)

CHECKS = (
    Check(
        "gradient_boundary",
        "Does a gradient stop where an episode starts?",
        "What happens in an episode is blamed on steps of another one, which had no part in it: gradients are noisy "
        "and grow.",
        "Clear memory in a way that gradients see: h.masked_fill(starts, 0) inside the graph. Assigning to h.data, or "
        "clearing under no_grad, zeroes the values and leaves the gradient's way open.",
        ("_manage_lstm_state", "get_states", "_process_sequence", "forward"),
        gradient_boundary,
    ),
    Check(
        "horizon",
        "Does a gradient reach from the last step of a segment back to its first?",
        "The policy cannot learn to remember: what it should have kept is further back than any gradient goes.",
        "Run the whole segment through the LSTM in one graph. Detach memory only where it is stored between calls, not "
        "between the steps of a segment.",
        ("forward", "get_states", "_process_sequence"),
        horizon,
    ),
)
