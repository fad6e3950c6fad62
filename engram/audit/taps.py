"""Taps: which numbers inside a network belong to one step of one row, and the gradient that reaches them.

Observations are often bytes, which have no gradient. But some module's output near them has, and changing a step's
observation shows which part of that output is the step's.
"""

# B rows, T steps

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from engram.audit.observations import random_observations
from engram.audit.subject import Answer, Segment, Subject
from engram.env.spec import EnvSpec


class Place(NamedTuple):
    """A part of a module's output: of which of its calls, and which one of its first dimensions."""

    call: int
    part: int


Recorded = dict[str, list[Tensor]]  # module -> its output in each call


class Tap(NamedTuple):
    module: str
    places: list[Place]  # of each step that was asked for


def find_tap(
    subject: Subject, segment: Segment, row: int, steps: Sequence[int], spec: EnvSpec, generator: torch.Generator
) -> Tap | None:
    """The first module of which each of these steps of a row has a part of its own."""
    base, _ = record(subject, segment)
    places: dict[str, list[Place]] = {name: [] for name in base}
    for step in steps:
        observations = segment.observations.clone()
        observations[row, step] = random_observations(spec, (1,), generator)[0]
        changed, _ = record(subject, replace(segment, observations=observations))
        for name in list(places):
            found = _changed(base[name], changed.get(name, []), segment.shape)
            if len(found) == 1 and found[0] not in places[name]:
                places[name].append(found[0])
            else:
                del places[name]
    return next((Tap(name, found) for name, found in places.items()), None)


def gradient_per_step(subject: Subject, segment: Segment, tap: Tap, loss: Callable[[Answer], Tensor]) -> Tensor:
    """The size of the loss's gradient at each of the tap's places."""
    recorded, answer = record(subject, segment)
    outputs = recorded[tap.module]
    gradients = torch.autograd.grad(loss(answer), outputs, allow_unused=True)
    sizes = []
    for place in tap.places:
        gradient = gradients[place.call]
        parts = None if gradient is None else _parts(gradient, segment.shape)
        sizes.append(torch.zeros(()) if parts is None else parts[place.part].norm())
    return torch.stack(sizes)


def record(subject: Subject, segment: Segment) -> tuple[Recorded, Answer]:
    """Learn, and keep what the modules put out, in the order of their first call."""
    recorded: Recorded = {}
    with _listening(subject.policy, recorded):
        torch.manual_seed(0)
        answer = subject.learn(segment)
    return recorded, answer


@contextmanager
def _listening(policy: nn.Module, recorded: Recorded) -> Iterator[None]:
    def listen(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: object, output: object) -> None:
            first = output[0] if isinstance(output, tuple) and output else output
            if isinstance(first, Tensor) and first.requires_grad and first.dim() > 0:
                recorded.setdefault(name, []).append(first)

        return hook

    handles = [part.register_forward_hook(listen(name)) for name, part in policy.named_modules() if name]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _parts(output: Tensor, shape: tuple[int, int]) -> Tensor:
    """The output as [parts, …]: rows and steps in one dimension, if they have two."""
    if output.dim() > 2 and tuple(output.shape[:2]) in (shape, shape[::-1]):
        return output.flatten(0, 1)
    return output


def _changed(before: list[Tensor], after: list[Tensor], shape: tuple[int, int]) -> list[Place]:
    found = []
    for call, (one, other) in enumerate(zip(before, after, strict=False)):
        if one.shape != other.shape:
            return []
        different = (_parts(one, shape) != _parts(other, shape)).flatten(1).any(1) if one.dim() > 1 else one != other
        found += [Place(call, int(index)) for index in different.nonzero().flatten()]
    return found
