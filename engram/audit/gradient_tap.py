"""Gradient taps: the part of a module's output that belongs to one step of one row, and the gradient there.

Observations are often bytes, which have no gradient, but the output of a module near them has one. Changing the
observation of a step shows which part of that output belongs to the step.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from engram.audit.adapters.base import PolicyAdapter, PolicyOutput, Segment
from engram.audit.scenario import random_observations
from engram.env.spec import EnvSpec


class OutputSlice(NamedTuple):
    """One index of the first dimension of a module's output, in one of its calls."""

    call: int
    position: int


Recorded = dict[str, list[Tensor]]  # module -> its output in each call
Trials = dict[OutputSlice, list[tuple[int, int]]]  # the trials in which a slice changed, as (digit, bit)


class GradientTap(NamedTuple):
    module: str
    slices: list[OutputSlice]  # one for each requested step


def find_gradient_tap(
    adapter: PolicyAdapter,
    segment: Segment,
    steps: Sequence[int],
    generator: torch.Generator,
    memory: Any,
) -> GradientTap | None:
    """The first module whose output has a separate slice for each of these steps of the first row.

    A binary search for all steps at once. Steps are numbered, and there is a trial for each binary digit and bit: it
    changes the observations of the steps whose number has this bit there. A slice belongs to the step that was changed
    in the same trials.
    """
    untouched = adapter.copy()
    base, _ = record(adapter, segment, memory)
    others = [_other_observation(segment.observations[0, step], adapter.spec, generator) for step in steps]
    trials: dict[str, Trials] = {
        name: {} for name, calls in base.items() if any(output.requires_grad for output in calls)
    }
    for digit in range(max((len(steps) - 1).bit_length(), 1)):
        for bit in (0, 1):
            observations = segment.observations.clone()
            for number, (step, other) in enumerate(zip(steps, others, strict=True)):
                if number >> digit & 1 == bit:
                    observations[0, step] = other
            calls = {name: len(base[name]) for name in trials}
            with torch.no_grad():  # on a copy, since the call is left early
                changed = _record_until(untouched.copy(), replace(segment, observations=observations), memory, calls)
            for name, slices in trials.items():
                for piece in _changed(base[name], changed.get(name, []), segment.shape):
                    slices.setdefault(piece, []).append((digit, bit))
        trials = {name: slices for name, slices in trials.items() if _separate(slices, digit + 1, len(steps))}
    for name, slices in trials.items():
        by_number = {sum(bit << digit for digit, bit in found): piece for piece, found in slices.items()}
        if len(by_number) == len(steps):
            return GradientTap(name, [by_number[number] for number in range(len(steps))])
    return None


def _separate(slices: Trials, digits: int, steps: int) -> bool:
    """Whether as many slices change as there are steps, each in one of the two trials of every digit."""
    return len(slices) == steps and all([d for d, _ in found] == list(range(digits)) for found in slices.values())


def _other_observation(observation: Tensor, spec: EnvSpec, generator: torch.Generator) -> Tensor:
    for _ in range(20):  # of few symbols, the same one may be drawn again
        other = random_observations(spec, (1,), generator)[0]
        if not torch.equal(other.to(observation.dtype), observation):
            break
    return other


@contextmanager
def perturbed(
    policy: nn.Module, tap: GradientTap, piece: OutputSlice, shape: tuple[int, int], delta: Tensor
) -> Iterator[None]:
    """Within this context, one slice of the tapped module's output is changed."""
    calls = 0

    def hook(_module: nn.Module, _inputs: object, output: Any) -> Any:
        nonlocal calls
        first = output[0] if isinstance(output, tuple) and output else output
        if not isinstance(first, Tensor) or first.dim() == 0:
            return None
        calls += 1
        if calls - 1 != piece.call:
            return None
        parts = _parts(first, shape).clone()
        parts[piece.position] += delta
        changed = parts.view(first.shape)
        return (changed, *output[1:]) if isinstance(output, tuple) else changed

    handle = policy.get_submodule(tap.module).register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def record(adapter: PolicyAdapter, segment: Segment, memory: Any) -> tuple[Recorded, PolicyOutput]:
    """Learn, and record the outputs of all modules, in the order of their first call."""
    recorded: Recorded = {}
    with _recording(adapter.policy, recorded):
        torch.manual_seed(0)
        output = adapter.learn(segment, memory)
    return recorded, output


class _AllRecordedError(Exception):
    """Leaves a call whose further outputs are not needed."""


def _record_until(adapter: PolicyAdapter, segment: Segment, memory: Any, calls: dict[str, int]) -> Recorded:
    """Learn until each of these modules was called this many times."""
    recorded: Recorded = {}

    def stop() -> None:
        if all(len(recorded.get(name, [])) >= count for name, count in calls.items()):
            raise _AllRecordedError

    with _recording(adapter.policy, recorded, stop), suppress(_AllRecordedError):
        torch.manual_seed(0)
        adapter.learn(segment, memory)
    return recorded


@contextmanager
def _recording(policy: nn.Module, recorded: Recorded, then: Callable[[], None] = lambda: None) -> Iterator[None]:
    def recorder(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: object, output: object) -> None:
            first = output[0] if isinstance(output, tuple) and output else output
            if isinstance(first, Tensor) and first.dim() > 0:
                recorded.setdefault(name, []).append(first)
                then()

        return hook

    handles = [part.register_forward_hook(recorder(name)) for name, part in policy.named_modules() if name]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _parts(output: Tensor, shape: tuple[int, int]) -> Tensor:
    """The output as [slices, …], with rows and steps in one dimension."""
    if output.dim() > 2 and tuple(output.shape[:2]) in (shape, shape[::-1]):
        return output.flatten(0, 1)
    return output


def _changed(before: list[Tensor], after: list[Tensor], shape: tuple[int, int]) -> list[OutputSlice]:
    found = []
    for call, (one, other) in enumerate(zip(before, after, strict=False)):
        if one.shape != other.shape:
            return []
        different = (_parts(one, shape) != _parts(other, shape)).flatten(1).any(1) if one.dim() > 1 else one != other
        found += [OutputSlice(call, int(index)) for index in different.nonzero().flatten()]
    return found


def slice_of(output: Tensor, piece: OutputSlice, shape: tuple[int, int]) -> Tensor:
    """One slice of an output, or of its gradient."""
    return _parts(output, shape)[piece.position]
