"""Causes of a wrong gradient: the part of the memory that is cut, the steps, an operation, or a line of the policy."""

import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from engram.audit.adapters.external_state import map_state
from engram.audit.context import AuditContext
from engram.audit.finite_difference import LearningCall, Loss, learning_call, reached_by_gradient, step_derivatives
from engram.audit.memory_parts import MemoryPart, listed, memory_parts
from engram.audit.result import attempt
from engram.audit.retained import graph_nodes
from engram.audit.source_location import ENGRAM, short_path

STAIRCASE = 1e-4  # a function is a staircase if its derivative is below this fraction of the gradient given for it
ROUNDING = 1e-2  # relative difference of a derivative from the true one that may be rounding
NEGLIGIBLE = 1e-6  # smaller derivatives are not compared
SHORT_SEGMENT = 3  # steps of a segment in which the memory at its start matters
MOST_LINES = 6  # that are tried one by one
FOREIGN_PATHS = ("site-packages", f"{ENGRAM}/audit", "<", "contextlib")  # parts of paths that are not the policy's
DETACHING = {Tensor.detach: "detach()", torch.detach: "detach()", Tensor.data.__get__: ".data"}  # type: ignore[attr-defined]
Gradient = TypeVar("Gradient")


def wrong_parts(audit: AuditContext, distances: Sequence[int] = (SHORT_SEGMENT,)) -> str:
    """Which parts of the memory have a wrong gradient, at the first of these distances from the last step.

    Those that get none although outputs depend on them are cut, if others do get one.
    """
    for steps in sorted(set(distances)):
        ratios = _ratios(audit, steps)
        cut = [name for name, ratio in ratios.items() if ratio == 0]
        wrong = [name for name, ratio in ratios.items() if abs(ratio - 1) > ROUNDING]
        whole = [name for name in ratios if name not in cut]
        right = [name for name in ratios if name not in wrong]
        if cut and whole:
            where = "between steps" if steps <= SHORT_SEGMENT else f"{steps - 1} steps before the last"
            return f"the gradient through {listed(cut)} is cut {where}: detached; through {listed(whole)} it is not"
        if wrong and right and steps == 1:
            return (
                f"the gradient through {listed(wrong)} is {ratios[wrong[0]]:.3g} of the true one for each step; "
                f"through {listed(right)} it is right"
            )
    return ""


def _ratios(audit: AuditContext, steps: int) -> dict[str, float]:
    """Autograd's part of the true derivative of the last outputs by each part of the memory this many steps before."""
    call = learning_call(audit, steps)
    parts = memory_parts(call.adapter, call.memory)
    found = {}
    for number, part in enumerate(parts):
        given, true = _derivatives(call, part, number)
        if abs(true) > NEGLIGIBLE:
            found[part.name] = given / true
    return found


def wrong_operation(single: LearningCall, kinds: Sequence[int]) -> str:
    """The operation with a wrong gradient within one step; none, if it is only detached there on purpose.

    With nothing detached, the gradient of such a step is the true one.
    """
    loss = single.loss(kinds)
    try:
        with NothingDetached():
            gradients = single.gradients(loss)
    except Exception:
        return ""
    if single.error(loss, 1, gradients) <= single.precision.error or single.jumps(loss):
        return ""
    if _only_steps(single, loss, gradients):
        return ""
    own = own_functions(loss(single.run()))
    return f"the backward pass of {own} is wrong" if own else "an operation within a step has a wrong gradient"


def own_functions(total: Tensor) -> str:
    """The names of functions with a backward pass of their own in a graph."""
    nodes = graph_nodes([total])
    names = {type(node).__name__.removesuffix("Backward") for node in nodes if isinstance(node, BackwardCFunction)}
    own = sorted(name for name in names if "::" not in name)  # others are registered operators
    return listed(own) if own else ""


def _only_steps(single: LearningCall, loss: Loss, gradients: dict[str, Tensor]) -> bool:
    """Whether all wrong gradients are of weights along which outputs are a staircase: they pass straight through it."""
    for number, (name, gradient) in enumerate(gradients.items()):
        direction = single.direction(200 + number, [name])
        true, given = float(single.derivative(loss, direction)), float((gradient * direction[name]).sum())
        wrong = abs(given - true) > max(single.precision.error * abs(true), 1e-8)
        if wrong and abs(true) > STAIRCASE * abs(given):
            return False
    return True


def _derivatives(call: LearningCall, part: MemoryPart, number: int) -> tuple[float, float]:
    """By autograd and by finite differences, along a random change of one part of the memory."""
    generator = call.audit.generator(220 + number)
    noise: list[Tensor] = []

    def draw(tensor: Tensor) -> Tensor:
        noise.append(torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.dtype))
        return noise[0]

    zeros = map_state(torch.zeros_like, call.memory)
    direction = part.changed(zeros, draw)
    length, loss = call.precision.step, call.last_loss

    def along(size: Any) -> Tensor:
        moved = copy(call)
        moved.memory = map_state(lambda value, change: value + (size * change).to(value.dtype), call.memory, direction)
        return loss(moved.run()).double()

    with torch.no_grad():
        true = float(along(length) - along(-length)) / (2 * length)
    size = torch.zeros((), dtype=torch.float64, requires_grad=True)
    total = along(size)
    given = torch.autograd.grad(total, [size], allow_unused=True)[0] if total.requires_grad else None
    return 0.0 if given is None else float(given), true


def where_cut(audit: AuditContext, cut: int, steps: int) -> str:
    """A cut before this step of a segment: at every step, every few steps, or there; and the line that makes it."""
    reach = steps - 1 - cut
    if reach == 0 and (parts := attempt(wrong_parts, audit)):
        return parts
    line = attempt(_cutting_line, audit, cut, steps)
    return _cut_in_words(audit, cut, steps) + (f" ({line})" if line else "")


def _cutting_line(audit: AuditContext, cut: int, steps: int) -> str:
    call = learning_call(audit, steps)

    return culprit(lambda: reached_by_gradient(call, cut - 1), bool)


def _cut_in_words(audit: AuditContext, cut: int, steps: int) -> str:
    if cut == steps - 1:
        return "memory is detached at every step of a segment: no gradient goes through time"
    if cut == 1:
        return "the first step of a segment gets no gradient: it is cut between the first step and the second"
    for period in (p for p in range(1, cut // 2 + 1) if cut % p == 0):
        call = learning_call(audit, period + 1)
        found = step_derivatives(call, [period - 1], only_missing=True)
        if found and found[0].given == 0 and abs(found[0].true) > call.precision.visible:
            return f"the gradient is cut every {period} steps of a segment (truncated backpropagation through time)"
    return f"the gradient is cut before step {cut} of {steps}: memory is detached there"


class Ignoring(TorchFunctionMode):
    """Within this context, some calls do nothing, and their lines are recorded. `only`: just the call of that line."""

    def __init__(self, only: str = "") -> None:
        super().__init__()
        self.lines: list[str] = []
        self._only = only

    def ignores(self, what: str) -> bool:
        line = f"{what} in {calling_line()}"
        if line not in self.lines:
            self.lines.append(line)
        return self._only in ("", line)


class WithoutHooks(Ignoring):
    """No hook is put on a tensor."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.register_hook and self.ignores("register_hook()"):
            return RemovableHandle(OrderedDict())
        return func(*args, **(kwargs or {}))


class NothingDetached(Ignoring):
    """`detach()`, `.data` and `no_grad` do nothing: gradients flow through what is detached."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in DETACHING and self.ignores(DETACHING[func]):
            return args[0]
        if getattr(func, "__name__", "") == "_set_grad_enabled" and not args[0] and self.ignores("no_grad()"):
            return None
        return func(*args, **(kwargs or {}))


def culprit(compute: Callable[[], Gradient], is_right: Callable[[Gradient], bool]) -> str:
    """The call without which a gradient is right, or the first two, with their lines; empty if there is none."""

    def right_without(mode: Ignoring) -> bool:
        try:
            with mode:
                gradient = compute()
            return is_right(gradient)
        except Exception:
            return False

    for kind in (WithoutHooks, NothingDetached):
        ignoring = kind()
        if right_without(ignoring) and (lines := ignoring.lines):
            if len(lines) == 1:
                return lines[0]
            alone = (line for line in lines[:MOST_LINES] if right_without(kind(line)))
            return next(alone, " and ".join(lines[:2]))
    return ""


def calling_line() -> str:
    """The innermost line outside of torch and the audit."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not any(part in file for part in FOREIGN_PATHS):
            return f"{short_path(file)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "?"
