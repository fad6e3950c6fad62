"""Are the gradients of learning the true ones, as finite differences give them?"""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import torch
from torch import Tensor

from engram.audit.checks.gradient_causes import SHORT_SEGMENT, culprit, own_functions, wrong_operation, wrong_parts
from engram.audit.checks.gradient_elsewhere import FLOAT32_GRADIENT, elsewhere
from engram.audit.checks.gradient_reach import NO_GRADIENT, WHOLE_SEGMENT, probes
from engram.audit.context import AuditContext
from engram.audit.finite_difference import (
    LearningCall,
    declared_truncation,
    gradient_difference,
    learning_call,
    step_derivatives,
)
from engram.audit.memory_parts import listed
from engram.audit.result import Check, DoesNotApplyError, Verdict, attempt

SAME_RATIO = 0.05  # relative difference between what two steps do to a gradient
KINDS = ("values", "log-probabilities", "entropies")
JUMPS = (
    "outputs jump as weights change smoothly, as with a quantised memory: finite differences cannot judge a "
    "straight-through gradient"
)
CLIPPED = (
    "the gradient of a larger loss is not larger in proportion: something clips or normalises gradients inside the "
    "network, as a hook does"
)
NO_HOOK = "Remove the hook. Clip gradients, all together, before the optimiser's step, and scale learning rates there."
OPERATION_FIX = "Compare backward() with finite differences: torch.autograd.gradcheck shows where it is wrong."
AT_STARTS = (
    "the gradient is wrong only in segments in which an episode starts: a start in one row detaches the memory of "
    "all rows, or a gradient crosses it"
)
CHANGED_BY = {  # the call that a line makes -> what it does to the gradient
    "detach()": "detach() cuts",
    ".data": ".data cuts",
    "no_grad()": "no_grad() cuts",
    "register_hook()": "a hook on a tensor changes",
}
CLIPPED_CAUSE = "gradients are clipped or normalised inside the network, as by a hook"


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
    gradients = call.gradients(call.loss())
    if hooked := _changed_by_hooks(call, gradients):
        text = f"{hooked}: the optimiser gets another gradient than the one of the loss"
        return Verdict(False, None, bound, text, cause=hooked, notes=tuple(notes), fix=NO_HOOK)
    if missing := _without_gradient(call, gradients):
        return Verdict(False, None, bound, missing, cause=missing, notes=tuple(notes), fix=NO_GRADIENT)
    error = call.error(call.loss(), gradients=gradients)
    if error > bound:
        kinds, failure = _within_a_step(audit, call, gradients, error, notes)
        if failure is not None:
            return failure
        error = call.error(call.loss(kinds))
    if error > bound and call.jumps(call.loss(kinds)):
        raise DoesNotApplyError(JUMPS)
    exactness = "float64" if call.precision.error < 1e-3 else "float32, which is all the policy takes"
    if error > bound:
        ratios = _ratios(call)
        pattern = _pattern(call, ratios)
        text = f"the gradient of a segment of {steps} steps is off by {error:.2g} of its size; {pattern}"
        wrong = _wrong_parameters(call, kinds)
        text += f"; wrong for {wrong}" if wrong else ""
        nearest = min(_wrong_ratios(call, ratios), default=(0, 1.0))[0]
        cause = _cause(audit, call, pattern, gradients, kinds, nearest)
        return Verdict(False, error, bound, text, cause=cause, notes=tuple(notes))
    if (found := elsewhere(audit, call, gradients, kinds)) is not None:
        return replace(found, notes=tuple(notes))
    text = f"over {steps} steps, gradients agree with finite differences in {exactness} to {error:.1g}"
    return Verdict(True, error, bound, text, notes=tuple(notes))


def _within_a_step(
    audit: AuditContext, call: LearningCall, gradients: dict[str, Tensor], error: float, notes: list[str]
) -> tuple[list[int], Verdict | None]:
    """The kinds of outputs whose gradient is right within one step; a failure, unless others are wrong on purpose."""
    single, bound = learning_call(audit, 1), call.precision.error
    kinds = [kind for kind in (0, 1, 2) if single.error(single.loss([kind]), 1) <= bound]
    wrong = [kind for kind in (0, 1, 2) if kind not in kinds]
    if wrong and (apart := call.disproportion(call.loss(), gradients)) > bound:
        return kinds, Verdict(False, apart, bound, CLIPPED, cause=CLIPPED_CAUSE, notes=tuple(notes))
    if wrong and (cause := wrong_operation(single, wrong)):
        text = f"even within one step, the gradient of {listed([KINDS[kind] for kind in wrong])} is not the true one"
        found = _wrong_parameters(single, wrong)
        text += f"; wrong for {found}" if found else ""
        return kinds, Verdict(False, error, bound, text, cause=cause, notes=tuple(notes), fix=OPERATION_FIX)
    for kind in wrong:
        notes.append(f"{KINDS[kind]} are not differentiated as computed, even within one step (a stop-gradient?)")
    if not kinds:
        raise DoesNotApplyError(f"the outputs have stop-gradients within a step: {'; '.join(notes)}")
    return kinds, None


def _cause(
    audit: AuditContext,
    call: LearningCall,
    pattern: str,
    gradients: dict[str, Tensor],
    kinds: Sequence[int],
    nearest: int,
) -> str:
    """The mechanism: a part of the memory that is detached, a gradient that is clipped or scaled, or a cut."""
    loss, bound = call.loss(kinds), call.precision.error
    line = attempt(culprit, lambda: call.gradients(loss), lambda found: call.error(loss, gradients=found) <= bound)
    by = f" ({line})" if line else ""
    alone = call.without_starts()
    if alone.error(alone.loss(kinds)) <= call.precision.error:
        return f"{AT_STARTS}{by}"
    if call.disproportion(call.loss(), gradients) > call.precision.error:
        return f"{CLIPPED_CAUSE}{by}"
    if parts := attempt(wrong_parts, audit, (1, SHORT_SEGMENT, *([nearest + 1] if nearest else []))):
        return f"{parts}{by}"
    own = "" if by else own_functions(call.loss()(call.run()))
    if pattern.startswith("the recurrent"):
        return f"{pattern}{by}"
    rows = _wrong_rows(call, kinds)
    pattern = f"it is wrong in {rows}" if rows else pattern.partition(":")[0]
    changes = f"the backward pass of {own} changes" if own else "something changes"
    changes = next((text for name, text in CHANGED_BY.items() if line.startswith(name)), changes)
    return f"{changes} the gradient between steps{by}: {pattern}"


def _wrong_rows(call: LearningCall, kinds: Sequence[int]) -> str:
    """The rows whose outputs have a wrong gradient, if others have a right one, where no episode starts."""
    alone, wrong, rows = call.without_starts(), [], range(len(call.segment.dones))
    for row in rows:
        single = copy(alone)
        single.weights = torch.zeros_like(alone.weights)
        single.weights[:, row] = alone.weights[:, row]
        loss = single.loss(kinds)
        if single.error(loss) > call.precision.error:
            wrong.append(str(row))
    return f"rows {listed(wrong)} of {len(rows)}" if 0 < len(wrong) < len(rows) else ""


def _changed_by_hooks(call: LearningCall, gradients: dict[str, Tensor]) -> str:
    """Which weights have a hook that changes their gradient."""
    hooks = {
        name: (p._backward_hooks, dict(p._backward_hooks)) for name, p in call.parameters().items() if p._backward_hooks
    }
    if not hooks:
        return ""
    for registered, _ in hooks.values():
        registered.clear()
    without = call.gradients(call.loss())
    for registered, before in hooks.values():
        registered.update(before)
    changed = [name for name in hooks if gradient_difference({name: without[name]}, gradients) > FLOAT32_GRADIENT]
    return f"a hook changes the gradient of {', '.join(changed[:5])}" if changed else ""


def _without_gradient(call: LearningCall, gradients: dict[str, Tensor]) -> str:
    """Outputs without any gradient, or weights that outputs depend on and that get none."""
    output = call.run()
    parts = (output.value, output.log_prob, output.entropy)
    dead = [name for name, part in zip(KINDS, parts, strict=True) if part is not None and not part.requires_grad]
    if dead:
        return f"{' and '.join(dead)} have no gradient: terms of the loss that use them do nothing"
    loss = call.loss()
    untouched = [name for name, gradient in gradients.items() if not gradient.any()]
    moving = [name for name in untouched if abs(float(call.derivative(loss, call.direction(210, [name])))) > 1e-6]
    if not moving:
        return ""
    return f"{', '.join(moving[:5])} get no gradient, though the outputs depend on them"


def _ratios(call: LearningCall) -> list[tuple[int, float]]:
    """Distances in steps, and autograd's part of the true derivative of the last outputs by what was seen there."""
    steps = call.segment.shape[1]
    found = step_derivatives(call, probes(steps)) or []
    visible = call.precision.visible * max((abs(each.true) for each in found), default=1.0)
    return [(steps - 1 - each.step, each.given / each.true) for each in found if abs(each.true) > visible]


def _wrong_ratios(call: LearningCall, ratios: list[tuple[int, float]]) -> list[tuple[int, float]]:
    return [(distance, ratio) for distance, ratio in ratios if abs(ratio - 1) > max(10 * call.precision.error, 1e-3)]


def _pattern(call: LearningCall, ratios: list[tuple[int, float]]) -> str:
    """The differences of the gradient by distance in steps."""
    wrong = _wrong_ratios(call, ratios)
    if not wrong:
        return _by_output_step(call)
    if all(ratio == 0 for _, ratio in wrong):
        return f"it is cut {min(distance for distance, _ in wrong)} steps before the last: see horizon"
    nearest, ratio = min(wrong)
    by_distance = dict(ratios)
    scaled = nearest == 1 and abs(by_distance.get(2, 0) - ratio**2) < SAME_RATIO * ratio**2
    if scaled and ratio < 0:
        return "the recurrent gradient has the wrong sign"
    if scaled:
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


CHECKS = (
    Check(
        "gradient_exact",
        "Is the gradient of a segment the true one, as finite differences give it?",
        "Updates do not go down the loss as it is computed: memory is learned slowly or wrongly.",
        WHOLE_SEGMENT,
        ("forward", "get_states", "_process_sequence"),
        gradient_exact,
    ),
)
