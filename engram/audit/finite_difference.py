"""Finite differences: the true gradient of a learning call, to compare with the one that autograd gives."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from engram.audit.adapters.base import PolicyOutput, Segment
from engram.audit.context import AuditContext
from engram.audit.gradient_tap import OutputSlice, find_gradient_tap, perturbed, record, slice_of
from engram.audit.scenario import Scenario, play
from engram.audit.weights import double_precision, doubled, gradients_of, trainable

ROWS = 4  # the first two without episode starts
DECLARED = re.compile(r"burn_?in|bptt|truncat|detach|backprop", re.IGNORECASE)
Loss = Callable[[PolicyOutput], Tensor]


class Precision(NamedTuple):
    """The precision of finite differences."""

    step: float
    error: float  # relative
    visible: float  # derivatives smaller than this fraction of the largest are ignored


DOUBLE = Precision(1e-6, 3e-4, 1e-7)
SHORTER = 0.01  # factor of the step: a wrong difference is taken again, because a ReLU's kink may be within the step
LONGER = (1e2, 1e3)  # factors of the step, to see whether a function is smooth
JUMP = 0.1  # relative difference between short and longer steps beyond which it is not
NUDGE = 1e-3  # relative to the size of weights
# The step for observations. Changes are multiples of 1/8 of it, so that float32 represents the changed ones exactly.
EXACT_STEP = 2.0**-17
SINGLE = Precision(1e-2, 0.1, 1e-2)


class LearningCall:
    """A learning call that can be repeated with changed weights or inputs."""

    def __init__(self, audit: AuditContext, steps: int, precision: Precision = DOUBLE) -> None:
        self.audit, self.precision = audit, precision
        self.adapter = audit.adapter()
        with torch.no_grad():  # where biases are 0, empty inputs are exactly at the kink of a ReLU
            for parameter, noise in zip(self.parameters().values(), self.direction(163).values(), strict=True):
                parameter.add_(NUDGE * noise)
        segment = audit.segment(160, rows=ROWS, steps=steps)
        dones = segment.dones.clone()
        for row in range(2, ROWS):
            dones[row, [(row * 5 + 3) % steps, (steps * row) // ROWS]] = steps > 2
        self.segment = replace(segment, dones=dones)
        past = audit.scenario(162, rows=ROWS, steps=3)
        with self._dtype():
            if precision is DOUBLE:
                self.segment = doubled(self.segment)
            self.memory = self._memory_after(past)
            generator = audit.generator(161)
            self.weights = torch.randn(3, ROWS, steps, generator=generator, dtype=torch.float64)

    def run(self, segment: Segment | None = None) -> PolicyOutput:
        with self._dtype():
            return self.adapter.learn(self.segment if segment is None else segment, self.memory)

    def without_starts(self) -> "LearningCall":
        """The same call without episode starts."""
        other = copy(self)
        other.segment = self.segment.without_starts()
        return other

    def loss(self, kinds: Sequence[int] = (0, 1, 2)) -> Loss:
        """A random combination of values, log-probabilities and entropies of all steps."""

        def total(output: PolicyOutput) -> Tensor:
            parts = (output.value, output.log_prob, output.entropy)
            chosen = [(self.weights[i] * part).sum() for i in kinds if (part := parts[i]) is not None]
            return torch.stack([*chosen, torch.zeros((), dtype=torch.float64)]).sum()

        return total

    def last_loss(self, output: PolicyOutput) -> Tensor:
        """The value and log-probability of the last step of the first row."""
        return output.value[0, -1].double() + output.log_prob[0, -1].double()

    def parameters(self) -> dict[str, nn.Parameter]:
        return trainable(self.adapter.policy)

    def gradients(self, loss: Loss) -> dict[str, Tensor]:
        return gradients_of(loss(self.run()), self.parameters())

    @torch.no_grad()
    def derivative(self, loss: Loss, direction: dict[str, Tensor], factor: float = 1.0) -> Tensor:
        """The central difference of a function of the outputs along a direction in the weights, over `factor` steps."""
        parameters, values, length = self.parameters(), [], self.precision.step * factor
        for sign in (1, -1):
            for name, delta in direction.items():
                parameters[name].add_(sign * length * delta)
            values.append(loss(self.run()).double())
            for name, delta in direction.items():
                parameters[name].sub_(sign * length * delta)
        return (values[0] - values[1]) / (2 * length)

    def direction(self, salt: int, names: Sequence[str] | None = None) -> dict[str, Tensor]:
        """Random changes of the weights, each in proportion to its size."""
        generator = self.audit.generator(salt)
        found = {}
        for name, p in self.parameters().items():
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype)
            if names is None or name in names:
                found[name] = noise * max(float(p.detach().square().mean().sqrt()), 1e-2)
        return found

    def error(self, loss: Loss, directions: int = 2, gradients: dict[str, Tensor] | None = None) -> float:
        """The relative error of autograd's directional derivatives."""
        gradients, worst = gradients or self.gradients(loss), 0.0
        for number in range(directions):
            direction = self.direction(170 + number)
            size = float(torch.stack([(gradients[n] * d).norm() for n, d in direction.items()]).norm())
            given = sum(float((gradients[n] * d).sum()) for n, d in direction.items())
            error = self._relative(given, float(self.derivative(loss, direction)), size)
            if self.precision is DOUBLE and error > DOUBLE.error:
                error = min(error, self._relative(given, float(self.derivative(loss, direction, SHORTER)), size))
            worst = max(worst, error)
        return worst

    def disproportion(self, loss: Loss, gradients: dict[str, Tensor]) -> float:
        """The relative difference between the gradient of 1000 times the loss and 1000 times its gradient."""
        larger = self.gradients(lambda output: 1000 * loss(output))
        return gradient_difference(gradients, {name: gradient / 1000 for name, gradient in larger.items()})

    def jumps(self, loss: Loss) -> bool:
        """Whether outputs jump as weights change, as with a quantised memory: then no difference is a derivative.

        The differences of a smooth function over short and longer steps agree, whatever its gradient is said to be.
        """
        direction = self.direction(170)
        short = float(self.derivative(loss, direction))
        longer = [float(self.derivative(loss, direction, factor)) for factor in LONGER]
        return self.precision is DOUBLE and any(abs(long - short) > JUMP * abs(long) for long in longer)

    def _relative(self, given: float, true: float, size: float) -> float:
        return abs(given - true) / max(size, abs(true), 1e-12)

    def wrong_steps(self) -> list[int]:
        """Steps of the first row whose own outputs have a wrong gradient."""
        direction, parameters = self.direction(190), self.parameters()

        def by_step(output: PolicyOutput) -> Tensor:
            return output.value[0].double() + output.log_prob[0].double()

        true, found = self.derivative(by_step, direction), []
        outputs = by_step(self.run())
        for step in range(len(true)):
            gradients = gradients_of(outputs[step], parameters, retain_graph=True)
            given = sum(float((gradient * direction[name]).sum()) for name, gradient in gradients.items())
            if abs(given - float(true[step])) > 10 * self.precision.error * max(float(true.abs().max()), 1e-12):
                found.append(step)
        return found

    @torch.no_grad()
    def _memory_after(self, past: Scenario) -> Any:
        if not self.adapter.learns_row_subsets:
            return None
        play(self.adapter, doubled(past) if self.precision is DOUBLE else past)
        return self.adapter.memory_of(list(range(ROWS)))

    @contextmanager
    def _dtype(self) -> Iterator[None]:
        with double_precision(self.adapter) if self.precision is DOUBLE else nullcontext():
            yield


def gradient_difference(true: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The relative difference between two gradients of all weights."""
    apart = torch.stack([(true[name] - other[name].to(true[name].dtype)).norm() for name in true]).norm()
    return float(apart / torch.stack([gradient.norm() for gradient in true.values()]).norm().clamp(min=1e-12))


def learning_call(audit: AuditContext, steps: int) -> LearningCall:
    """A learning call in float64 if the policy supports it, else in float32."""
    try:
        call = LearningCall(audit, steps)
        call.run()
    except Exception:
        call = LearningCall(audit, steps, SINGLE)
    return call


class StepDerivative(NamedTuple):
    """The derivative of the last step's outputs along a change of one step's input."""

    step: int
    given: float  # by autograd
    true: float  # by finite differences


def step_derivatives(
    call: LearningCall, steps: Sequence[int], only_missing: bool = False
) -> list[StepDerivative] | None:
    """The derivatives of the first row at each of these steps; None if no tensor belongs to a single step.

    With `only_missing`, finite differences are taken only where autograd gives no gradient at all.
    """
    if call.segment.observations.is_floating_point():
        gradient = _observation_gradient(call)
        last = _at_observation(call, gradient, call.segment.shape[1] - 1)
        if last.given or not last.true:  # else features are fixed on purpose, and the gradient begins behind them
            return [_at_observation(call, gradient, step, only_missing) for step in steps]
    with call._dtype():
        tap = find_gradient_tap(call.adapter, call.segment, steps, call.audit.generator(65), call.memory)
    if tap is None:
        return None
    with call._dtype():
        recorded, output = record(call.adapter, call.segment, call.memory)
    total = call.last_loss(output)
    if not total.requires_grad:
        return [StepDerivative(step, 0.0, 1.0) for step in steps]
    tapped = {i: out for i, out in enumerate(recorded[tap.module]) if out.requires_grad}
    found_gradients = torch.autograd.grad(total, list(tapped.values()), allow_unused=True)
    gradients = dict(zip(tapped, found_gradients, strict=True))
    found = []
    for step, piece in zip(steps, tap.slices, strict=True):
        whole = recorded[tap.module][piece.call]
        part = slice_of(whole.detach(), piece, call.segment.shape)
        change = torch.randn(part.shape, generator=call.audit.generator(step), dtype=torch.float64).to(part.dtype)
        gradient = gradients.get(piece.call)
        given = 0.0 if gradient is None else float((slice_of(gradient, piece, call.segment.shape) * change).sum())

        def loss_after(length: float, piece: OutputSlice = piece, change: Tensor = change) -> Tensor:
            with perturbed(call.adapter.policy, tap, piece, call.segment.shape, length * change):
                return call.last_loss(call.run())

        found.append(
            StepDerivative(step, given, given if given and only_missing else _central(loss_after, call.precision.step))
        )
    return found


def reached_by_gradient(call: LearningCall, step: int) -> bool:
    """Whether the last outputs have a gradient by the observation of a step, where observations can have one."""
    gradient = _observation_gradient(call) if call.segment.observations.is_floating_point() else None
    return gradient is not None and bool(gradient[0, step].any())


def _observation_gradient(call: LearningCall) -> Tensor | None:
    leaf = call.segment.observations.clone().requires_grad_()
    total = call.last_loss(call.run(replace(call.segment, observations=leaf.clone())))
    return torch.autograd.grad(total, [leaf], allow_unused=True)[0] if total.requires_grad else None


def _at_observation(
    call: LearningCall, gradient: Tensor | None, step: int, only_missing: bool = False
) -> StepDerivative:
    observations = call.segment.observations
    change = torch.zeros_like(observations)
    noise = torch.randn(observations[0, step].shape, generator=call.audit.generator(step), dtype=torch.float64)
    change[0, step] = ((noise * 8).round() / 8).to(observations.dtype)
    given = 0.0 if gradient is None else float((gradient * change).sum())

    def loss_after(length: float) -> Tensor:
        return call.last_loss(call.run(replace(call.segment, observations=observations + length * change)))

    length = EXACT_STEP if call.precision is DOUBLE else call.precision.step
    return StepDerivative(step, given, given if given and only_missing else _central(loss_after, length))


@torch.no_grad()
def _central(loss_after: Callable[[float], Tensor], length: float) -> float:
    """The central difference of a loss over this step."""
    return (float(loss_after(length)) - float(loss_after(-length))) / (2 * length)


def declared_truncation(policy: nn.Module) -> dict[str, int]:
    """Attributes by which a policy declares that gradients stop: `burn_in = 8`, `tbptt_steps = 16`."""
    found = {}
    for module in policy.modules():
        for owner in (module, *type(module).__mro__):
            for name, value in vars(owner).items():
                if DECLARED.search(name) and isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    found[name] = value
    return found
