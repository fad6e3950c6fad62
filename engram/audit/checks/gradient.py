"""Are the gradients of learning the true ones, through all steps, and none across an episode start?"""

# B rows, T steps

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engram.audit.adapters.base import PolicyAdapter, PolicyOutput, Segment
from engram.audit.checks.boundary import some_memory
from engram.audit.context import AuditContext
from engram.audit.finite_difference import (
    LearningCall,
    StepDerivative,
    declared_truncation,
    learning_call,
    step_derivatives,
)
from engram.audit.result import Check, DoesNotApplyError, Verdict
from engram.audit.scenario import random_observations

SAME_GRADIENT = 1e-4  # relative
FLOAT32_GRADIENT = 1e-2  # relative difference between the gradients of float32 and float64
KINDS = ("values", "log-probabilities", "entropies")


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
    if measured > SAME_GRADIENT:
        crossed = [
            step
            for step in range(1, steps)
            if _gradient_change(adapter, segment, changed, memory, after & (torch.arange(steps) == step).view(-1, 1))[0]
            > SAME_GRADIENT * size
        ]
        finding += f"; it crosses starts at steps {', '.join(map(str, crossed))} of {steps}" if crossed else ""
    return Verdict(measured <= SAME_GRADIENT, measured, SAME_GRADIENT, finding)


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


def horizon(audit: AuditContext) -> Verdict:
    """From the last step of a segment back to its first: does the gradient reach as far as memory does?"""
    steps = audit.sizes.horizon
    call = learning_call(audit, steps)
    if not call.last_loss(call.run()).requires_grad:
        return Verdict(False, 0, steps - 1, "learning gives no gradient at all", at_least=True, fix=NO_GRADIENT)
    found = step_derivatives(call, probes(steps))
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
    fix, passed = "", cut is None
    if cut is not None:
        exact = _first_reached(call, found, cut, visible)
        reach = steps - 1 - exact
        declared = _declared(audit, exact, steps)
        passed = bool(declared)
        finding = (
            f"the gradient of the last of {steps} steps is cut before step {exact}: it reaches {reach} steps back, "
        )
        if not found[-1].given:
            finding = "the outputs of the last step have no gradient, not even to their own observation: "
        finding += f"memory reaches {memory_reach}" + (f"; {declared}, as declared" if declared else "")
    wanted = getattr(audit.policy, "memory_horizon", 0)
    if isinstance(wanted, int) and not isinstance(wanted, bool) and 0 < wanted <= steps - 1 and memory_reach < wanted:
        passed, fix = False, "Remember for as long as memory_horizon declares, or declare less."
        finding += f"; memory_horizon declares {wanted} steps"
    return Verdict(passed, reach, min(memory_reach, steps - 1), finding, at_least=True, fix=fix, evidence=evidence)


def probes(steps: int) -> tuple[int, ...]:
    """Steps to look at: the last ones, and further ones at growing distances."""
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


def _first_reached(call: LearningCall, found: Sequence[StepDerivative], cut: int, visible: float) -> int:
    """The exact step of the cut, between two probes."""
    low = max((each.step for each in found if each.step < cut), default=cut)
    while cut - low > 1:
        middle = (low + cut) // 2
        derivatives = step_derivatives(call, [middle])
        if derivatives and derivatives[0].given != 0:
            cut = middle
        else:
            low = middle
    return cut


def _declared(audit: AuditContext, cut: int, steps: int) -> str:
    for name, value in declared_truncation(audit.policy).items():
        if cut == value or cut % value == 0 or steps - cut == value:
            return f"{name} is {value}"
    return ""


def gradient_exact(audit: AuditContext) -> Verdict:
    """Autograd's gradient of a segment's outputs against finite differences in float64, along random directions."""
    steps = audit.sizes.horizon
    declared = [value for value in declared_truncation(audit.policy).values() if value < steps]
    notes = []
    if declared:
        steps = min(declared)
        notes.append(f"gradients are compared over {steps} steps, within which the policy declares no cut")
    call, kinds = learning_call(audit, steps), [0, 1, 2]
    bound = call.precision.error
    if missing := _without_gradient(call):
        return Verdict(False, None, bound, missing, notes=tuple(notes), fix=NO_GRADIENT)
    error = call.error(call.loss())
    if error > bound:
        single = learning_call(audit, 1)
        kinds = [kind for kind in kinds if single.error(single.loss([kind]), 1) <= bound]
        for kind in {0, 1, 2} - {*kinds}:
            notes.append(f"{KINDS[kind]} are not differentiated as computed, even within one step (a stop-gradient?)")
        if not kinds:
            raise DoesNotApplyError(f"the outputs have stop-gradients within a step: {'; '.join(notes)}")
        error = call.error(call.loss(kinds))
    if error > bound and call.jumps(call.loss(kinds)):
        raise DoesNotApplyError(JUMPS)
    exactness = "float64" if call.precision.error < 1e-3 else "float32, which is all the policy takes"
    if error > bound:
        text = f"the gradient of a segment of {steps} steps is off by {error:.2g} of its size; {_pattern(audit, call)}"
        wrong = _wrong_parameters(call, kinds)
        text += f"; wrong for {wrong}" if wrong else ""
        return Verdict(False, error, bound, text, notes=tuple(notes))
    drift = _float32_error(audit, steps) if exactness == "float64" else 0.0
    if drift > FLOAT32_GRADIENT:
        text = f"the gradient in float32 differs from the one in float64 by {drift:.2g} of its size"
        return Verdict(False, drift, FLOAT32_GRADIENT, text, notes=tuple(notes))
    text = f"over {steps} steps, gradients agree with finite differences in {exactness} to {error:.1g}"
    return Verdict(True, error, bound, text, notes=tuple(notes))


def _without_gradient(call: LearningCall) -> str:
    """Outputs without any gradient, or weights that outputs depend on and that get none."""
    output = call.run()
    parts = (output.value, output.log_prob, output.entropy)
    dead = [name for name, part in zip(KINDS, parts, strict=True) if part is not None and not part.requires_grad]
    if dead:
        return f"{' and '.join(dead)} have no gradient: terms of the loss that use them do nothing"
    loss = call.loss()
    untouched = [name for name, gradient in call.gradients(loss).items() if not gradient.any()]
    moving = [name for name in untouched if abs(float(call.derivative(loss, call.direction(210, [name])))) > 1e-6]
    if not moving:
        return ""
    return f"{', '.join(moving[:5])} get no gradient, though the outputs depend on them"


def _pattern(audit: AuditContext, call: LearningCall) -> str:
    """How the gradient differs with the distance in steps."""
    steps = call.segment.shape[1]
    found = step_derivatives(call, probes(steps)) or []
    visible = call.precision.visible * max((abs(each.true) for each in found), default=1.0)
    ratios = [(steps - 1 - each.step, each.given / each.true) for each in found if abs(each.true) > visible]
    wrong = [(distance, ratio) for distance, ratio in ratios if abs(ratio - 1) > max(10 * call.precision.error, 1e-3)]
    if not wrong:
        return _by_output_step(call)
    if all(ratio == 0 for _, ratio in wrong):
        return f"it is cut {min(distance for distance, _ in wrong)} steps before the last: see horizon"
    nearest, ratio = min(wrong)
    by_distance = dict(ratios)
    if nearest == 1 and abs(by_distance.get(2, 0) - ratio**2) < 0.01 and ratio < 0:
        return "the recurrent gradient has the wrong sign"
    if nearest == 1 and abs(by_distance.get(2, 0) - ratio**2) < 0.01:
        return f"the recurrent gradient is scaled: {ratio:.3g} of the true one for each step back"
    return (
        f"{nearest} step{'s' * (nearest > 1)} back it is {ratio:.2g} of the true one: a part of the memory is detached "
        "between steps (h and not c, or one layer of several), or its gradient is changed"
    )


def _by_output_step(call: LearningCall) -> str:
    """Which steps' outputs have a wrong gradient, where that of the last step is right."""
    wrong = call.wrong_steps()
    if not wrong:
        return "the last step's gradient is right, so the fault is in other steps' outputs"
    first = wrong[0]
    if not first:
        return f"the outputs of steps {', '.join(map(str, wrong[:8]))} have a wrong gradient"
    return (
        f"outputs up to step {first - 1} have the right gradient, and from step {first} on a wrong one: memory is "
        f"detached, or its gradient changed, before step {first}"
    )


def _wrong_parameters(call: LearningCall, kinds: Sequence[int]) -> str:
    """Weights whose gradient is wrong, with autograd's part of the true one."""
    loss = call.loss(kinds)
    gradients, found = call.gradients(loss), []
    for number, name in enumerate(list(gradients)[:40]):
        direction = call.direction(200 + number, [name])
        true = float(call.derivative(loss, direction))
        given = float((gradients[name] * direction[name]).sum())
        if abs(given - true) > max(call.precision.error * abs(true), 1e-8):
            found.append(f"{name} ({given:.2g}, true {true:.2g})")
    return ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")


def _float32_error(audit: AuditContext, steps: int) -> float:
    """How far the gradient in float32, which training uses, is from that in float64."""
    from engram.audit.finite_difference import SINGLE

    double, single = LearningCall(audit, steps), LearningCall(audit, steps, SINGLE)
    one, other = double.gradients(double.loss()), single.gradients(single.loss())
    apart = torch.stack([(one[name] - other[name].double()).norm() for name in one]).norm()
    return float(apart / torch.stack([g.norm() for g in one.values()]).norm().clamp(min=1e-12))


JUMPS = (
    "outputs jump as weights change smoothly, as with a quantised memory: finite differences cannot judge a "
    "straight-through gradient"
)
NO_GRADIENT = (
    "Learning must not run under torch.no_grad() or torch.inference_mode(), and must not detach weights or what it "
    "returns. Weights that are not to be trained are declared with requires_grad_(False)."
)
WHOLE_SEGMENT = (
    "Run the whole segment through the recurrent layer in one graph. Detach memory only where it is stored between "
    "calls, not between the steps of a segment. A cut on purpose is declared by an attribute: burn_in = 8, "
    "tbptt_steps = 16."
)

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
    Check(
        "gradient_exact",
        "Is the gradient of a segment the true one, as finite differences give it?",
        "Updates do not go down the loss as it is computed: memory is learned slowly or wrongly.",
        WHOLE_SEGMENT,
        ("forward", "get_states", "_process_sequence"),
        gradient_exact,
    ),
)
