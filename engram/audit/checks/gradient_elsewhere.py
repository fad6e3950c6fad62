"""Is a gradient that is right also right elsewhere: after other calls, with larger weights, in float32, in a batch?"""

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor

from engram.audit.adapters.base import Segment
from engram.audit.checks.boundary import some_memory
from engram.audit.checks.gradient_causes import culprit
from engram.audit.context import AuditContext
from engram.audit.finite_difference import (
    DOUBLE,
    ROWS,
    SINGLE,
    LearningCall,
    gradient_difference,
    learning_call,
)
from engram.audit.result import Verdict, attempt
from engram.audit.retained import ACCUMULATES, graph_nodes
from engram.audit.weights import doubled, gradients_of, scale_weights, trainable

FLOAT32_GRADIENT = 1e-2  # relative difference between the gradients of float32 and float64
SHORT_STEPS = 8  # steps of a segment with many rows, or with large weights
REPEATED_STEPS, REPEATS = 3, 12  # steps of a segment whose gradient is computed repeatedly, and how often
LARGE_WEIGHTS = 5.0  # factor

RECOMPUTED = "recomputed from what the module keeps of its last call, not from what that call was given"
RECOMPUTED_FIX = (
    "Give what the backward pass needs to ctx.save_for_backward, or to the function that is recomputed as an argument: "
    "no attribute of the module that the next call overwrites."
)
LIST_FIX = "Keep layers in attributes of the module, in nn.ModuleList or nn.ModuleDict, and weights in nn.Parameter."
AGAIN_FIX = "What a learning call computes may not depend on how many calls there were."


def elsewhere(
    audit: AuditContext, call: LearningCall, gradients: dict[str, Tensor], kinds: list[int]
) -> Verdict | None:
    """The first failure of a gradient that agrees with finite differences, for these kinds of outputs."""
    experiments: tuple[Callable[[], Verdict | None], ...] = (
        partial(_outside_parameters, audit),
        partial(_needs_its_call, call, gradients),
        partial(_changes_with_calls, audit),
        partial(_large_weights, audit, call.segment.shape[1], kinds),
        partial(_float32, audit, call, gradients),
        partial(_many_rows, audit),
    )
    return next((found for each in experiments if (found := each()) is not None), None)


def _outside_parameters(audit: AuditContext) -> Verdict | None:
    """Weights that get a gradient, but are not parameters of the module."""
    adapter = audit.adapter()
    known = {id(parameter) for parameter in adapter.policy.parameters()}
    output = adapter.learn(audit.segment(167, rows=2, steps=2))
    nodes = graph_nodes([output.value, output.log_prob], weights=True)
    weights = [node.variable for node in nodes if node.name() == ACCUMULATES]
    outside = sorted(str(list(weight.shape)) for weight in weights if id(weight) not in known)
    if not outside:
        return None
    cause = (
        f"{len(outside)} weights are no parameters of the module ({', '.join(outside[:4])}): a layer in a plain list?"
    )
    text = f"{cause} They are never trained, moved or saved"
    return Verdict(False, len(outside), 0, text, cause=cause, fix=LIST_FIX)


def _needs_its_call(call: LearningCall, gradients: dict[str, Tensor]) -> Verdict | None:
    """Whether the gradient of a call changes if another call is made before its backward pass."""
    total = call.loss()(call.run())
    other = copy(call)
    other.segment = doubled(call.audit.segment(166, rows=ROWS, steps=call.segment.shape[1]))
    try:
        other.run()
        later = gradients_of(total, call.parameters())
    except Exception:  # torch says so, where a tensor of the graph was changed
        return None
    if (apart := gradient_difference(gradients, later)) <= call.precision.error:
        return None
    text = f"the gradient of a segment changes if another one is computed before its backward pass: {RECOMPUTED}"
    return Verdict(False, apart, call.precision.error, text, cause=f"the gradient is {RECOMPUTED}", fix=RECOMPUTED_FIX)


def _changes_with_calls(audit: AuditContext) -> Verdict | None:
    """Whether the same call gets a different gradient when it is repeated."""
    call = learning_call(audit, REPEATED_STEPS)
    first = call.gradients(call.loss())
    for number in range(2, REPEATS + 1):
        if (apart := gradient_difference(first, call.gradients(call.loss()))) > call.precision.error:
            cause = (
                f"the gradient depends on the number of calls: it is another one when computed for the {number}th time"
            )
            return Verdict(False, apart, call.precision.error, cause, cause=cause, fix=AGAIN_FIX)
    return None


def _large_weights(audit: AuditContext, steps: int, kinds: list[int]) -> Verdict | None:
    """Finite differences with larger weights, as training makes them: units saturate, and memory is larger."""
    call = learning_call(audit, min(steps, SHORT_STEPS))
    if call.precision is not DOUBLE:
        return None
    scale_weights(call.adapter, LARGE_WEIGHTS)
    bound, loss = call.precision.error, call.loss(kinds)
    single_step = LearningCall(audit, 1)
    scale_weights(single_step.adapter, LARGE_WEIGHTS)
    if (error := call.error(loss)) <= bound or call.jumps(loss):
        return None
    if single_step.error(single_step.loss(kinds)) > bound:  # then the fault is not in the gradient through time
        return None
    text = f"with weights {LARGE_WEIGHTS:g} times as large, the gradient is off by {error:.2g} of its size"
    line = attempt(culprit, lambda: call.gradients(loss), lambda found: call.error(loss, gradients=found) <= bound)
    cause = "the gradient is cut or changed where memory or units are large" + (f" ({line})" if line else "")
    return Verdict(False, error, bound, text, cause=cause)


def _float32(audit: AuditContext, call: LearningCall, gradients: dict[str, Tensor]) -> Verdict | None:
    """The difference between the gradient in float32, which training uses, and in float64."""
    if call.precision is not DOUBLE:
        return None
    single = LearningCall(audit, call.segment.shape[1], SINGLE)
    drift = gradient_difference(gradients, single.gradients(single.loss()))
    if drift <= FLOAT32_GRADIENT:
        return None
    text = f"the gradient in float32 differs from the one in float64 by {drift:.2g} of its size"
    return Verdict(False, drift, FLOAT32_GRADIENT, text)


def _many_rows(audit: AuditContext) -> Verdict | None:
    difference = _batch_dependence(audit)
    apart = difference()
    if apart <= FLOAT32_GRADIENT:
        return None
    text = f"with {audit.sizes.rows} rows, the gradient of the same four rows differs by {apart:.2g} of its size"
    line = attempt(culprit, difference, lambda found: found <= FLOAT32_GRADIENT)
    by = f" ({line})" if line else ""
    cause = f"the gradient depends on the number of rows: with {audit.sizes.rows} it is cut or changed{by}"
    return Verdict(False, apart, FLOAT32_GRADIENT, text, cause=cause)


def _batch_dependence(audit: AuditContext) -> Callable[[], float]:
    """A measurement: the relative change of the gradient of four rows when they are learned together with many."""
    adapter, rows, steps = audit.adapter(), audit.sizes.rows, min(audit.sizes.horizon, SHORT_STEPS)
    if rows <= ROWS or not adapter.learns_row_subsets:
        return lambda: 0.0
    chosen = [0, 1, rows - 2, rows - 1]
    segment, memory = audit.segment(163, rows=rows, steps=steps), some_memory(audit, adapter, rows)
    weights = torch.randn(2, ROWS, steps, generator=audit.generator(165))

    def gradients(some: Segment, start: Any, index: list[int]) -> dict[str, Tensor]:
        output = adapter.learn(some, start)
        total = (weights[0] * output.value[index] + weights[1] * output.log_prob[index]).sum()
        return gradients_of(total, trainable(adapter.policy))

    def difference() -> float:
        alone = gradients(segment[chosen], adapter.select_rows(memory, chosen), list(range(ROWS)))
        return gradient_difference(alone, gradients(segment, memory, chosen))

    return difference
