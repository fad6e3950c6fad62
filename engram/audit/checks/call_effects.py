"""Side effects of calls besides the memory of their rows: on random generators, caches, weights and inputs."""

import random
import time
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram.audit.adapters.base import Segment
from engram.audit.adapters.external_state import leaves
from engram.audit.adapters.td import TdAdapter
from engram.audit.checks.boundary import some_memory
from engram.audit.context import AuditContext
from engram.audit.difference import max_difference, tolerance
from engram.audit.memory_parts import listed
from engram.audit.retained import changed_by
from engram.audit.scenario import play, random_observations, seed_everything
from engram.audit.weights import scale_outputs, scale_weights

SHARED = "memory is shared by all copies of the policy: it is kept in the class, a global or a closure"
CACHED = "outputs are taken from a cache: a call gets those of an earlier one with other observations"
CARRIED = "learning continues from the memory that the previous learning call ended with, not from the one it is given"
DEPENDS = "outputs of a learning call depend on the observations of the one before"
KEPT = (
    "the policy keeps its inputs without a copy, or looks them up by their address: where the caller reuses its "
    "buffers, as environments do, it mixes current observations with earlier ones"
)
CLOCK_SHIFT = 12345.6  # seconds by which clocks are set forward
LARGE_WEIGHTS, LARGE_OUTPUTS = 3.0, 10.0


def changed_by_calls(audit: AuditContext) -> str:
    """The first forbidden side effect of calls; empty if there is none."""
    experiments = (
        _reads_the_clock,
        _overwrites_outputs,
        _changes_weights,
        _repeated_learning,
        _remembers_calls,
        _keeps_inputs,
    )
    return next((found for experiment in experiments if (found := experiment(audit))), "")


def shared_by_copies(audit: AuditContext) -> str:
    """Whether playing with one copy changes the outputs of another, unless that one is reset."""
    scenario = audit.scenario(93, steps=3)
    outputs: list[Tensor] = []
    for other, reset in ((False, True), (False, True), (True, False)):
        if other:
            play(audit.adapter(), audit.scenario(86, steps=3))
        adapter = audit.adapter()
        if reset:
            adapter.reset()
        seed_everything(len(outputs))  # another one each time
        outputs.append(play(adapter, scenario).numbers)
    one, again, after_another = outputs
    difference = max_difference(one, after_another)
    if max_difference(one, again) > tolerance(one) or difference <= tolerance(one):
        return ""
    return f"what one copy of the policy plays changes the outputs of another, by {difference:.2g}: {SHARED}"


def _overwrites_outputs(audit: AuditContext) -> str:
    """Whether a call changes what the call before returned."""
    adapter, scenario = audit.adapter(), audit.scenario(86, steps=2)
    first = adapter.act(scenario.batch(audit.every_row, 0))
    given = {"the value": first.value, "the log-probability": first.log_prob, "the action": first.actions}
    before = {name: value.clone() for name, value in given.items()}
    adapter.act(scenario.batch(audit.every_row, 1))
    changed = [name for name, value in given.items() if not torch.equal(value, before[name])]
    if not changed:
        return ""
    return f"a call overwrites {' and '.join(changed)} that the call before returned (a buffer is reused)"


def _repeated_learning(audit: AuditContext) -> str:
    """The cause if a repeated learning call gives different outputs."""
    if audit.learning_error:
        return ""
    adapter, segment = audit.adapter(own_mode=True), audit.segment(85, end_chance=0.2)
    if isinstance(adapter, TdAdapter):
        adapter.reset_works = callable(getattr(adapter.policy, "reset_memory", None))
    memory = some_memory(audit, audit.adapter(own_mode=True), audit.rows)
    memory_before = deepcopy(memory)
    outputs = [adapter.learn(segment, memory, after_acting=True).numbers() for _ in range(6)]
    if not all(torch.equal(one, other) for one, other in zip(leaves(memory), leaves(memory_before), strict=True)):
        return "a learning call writes into the state that it is given, so that the caller's copy changes (aliasing)"
    repeats = [max_difference(outputs[0], other) for other in outputs[1:]]
    if max(repeats) > tolerance(outputs[0]) and not _moved_buffers(audit, acting=False):
        if _carries_over(audit):
            return CARRIED
        changing = audit.adapter(own_mode=True)
        names = changed_by(changing.policy, lambda: changing.learn(segment, memory, after_acting=True))
        kept = f" ({listed(names)} changes)" if names else ""
        text = f"the same learning call gives other outputs when repeated, by {max(repeats):.2g}"
        return f"{text}: it depends on earlier calls{kept}"
    moved = _moved_buffers(audit, acting=True)
    play(adapter, audit.scenario(86, steps=3))
    difference = max(*repeats, max_difference(outputs[0], adapter.learn(segment, memory, after_acting=True).numbers()))
    if moved and difference > tolerance(outputs[0]):
        return (
            f"the same learning call gives other outputs later, by {difference:.2g}, "
            f"because calls change {', '.join(moved)}"
        )
    return ""


def _carries_over(audit: AuditContext) -> bool:
    """Whether a learning call continues from where the one before ended, whatever memory it is given."""
    past, adapter = audit.scenario(54, steps=3), audit.adapter()
    scenario = audit.scenario(86, steps=4)
    memory = some_memory(audit, adapter, audit.rows)
    if memory is not None:
        adapter.reset()
        play(adapter, past)
    played = [play(adapter, scenario) for _ in range(2)]
    learner = audit.adapter()
    for each in played:
        learned = learner.learn(scenario.segment(each.actions), memory, after_acting=True)
    # Both learning calls are given the same memory; the second time, acting continued from where the first ended.
    return max_difference(learned.value, played[1].value) <= tolerance(learned.value)


def _remembers_calls(audit: AuditContext) -> str:
    """Whether a learning call returns outputs of the previous call, which had similar observations."""
    if audit.learning_error:
        return ""
    segment = audit.segment(85)
    for other in _similar(audit, segment):
        adapter, fresh = audit.adapter(own_mode=True), audit.adapter(own_mode=True)
        before = adapter.learn(segment, after_acting=True).numbers()
        after, expected = (each.learn(other, after_acting=True).numbers() for each in (adapter, fresh))
        if max_difference(after, expected) > tolerance(expected):
            same = max_difference(after, before) <= tolerance(before)
            return CACHED if same else DEPENDS
    return ""


def _similar(audit: AuditContext, segment: Segment) -> Iterator[Segment]:
    """Segments of the same shape: with other observations in one row, or at one step, or with two steps swapped."""
    others = random_observations(audit.spec, segment.shape, audit.generator(87))
    rows, steps = segment.shape
    for index in ((rows - 1,), (0,), (slice(None), steps - 1), (slice(None), 0)):
        observations = segment.observations.clone()
        observations[index] = others[index]
        yield replace(segment, observations=observations)
    swapped = segment.observations.clone()  # sums and sets stay the same
    swapped[:, [1, 2]] = swapped[:, [2, 1]]
    yield replace(segment, observations=swapped)


def seeds_generators(audit: AuditContext) -> str:
    """The global random generators whose state after a call does not depend on their state before it."""
    batch, segment = audit.scenario(93, steps=1).batch(audit.every_row, 0), audit.segment(92)
    states: list[dict[str, Any]] = []
    for seed in (1, 2):
        adapter = audit.original.copy()
        adapter.fixed_sampling = False
        seed_everything(seed)
        adapter.act(batch)
        if not audit.learning_error:
            adapter.learn(segment)
        states.append(
            {
                "torch's": torch.get_rng_state().tolist(),
                "NumPy's": np.random.get_state()[1].tolist(),  # type: ignore[index]
                "Python's": random.getstate(),
            }
        )
    same = [name for name, state in states[0].items() if state == states[1][name]]
    return f"{listed(same)} global random generator" if same else ""


def _reads_the_clock(audit: AuditContext) -> str:
    """Whether outputs depend on a clock: the time of day, or the seconds since the computer was started."""
    scenario = audit.scenario(86, steps=2)
    clocks = {name: getattr(time, name) for name in ("time", "monotonic", "perf_counter")}
    expected = play(audit.adapter(), scenario).numbers
    try:
        for name, clock in clocks.items():
            setattr(time, name, lambda clock=clock: clock() + CLOCK_SHIFT)
        later = play(audit.adapter(), scenario).numbers
    finally:
        for name, clock in clocks.items():
            setattr(time, name, clock)
    return "outputs depend on the time of day" if max_difference(later, expected) > tolerance(expected) else ""


def _changes_weights(audit: AuditContext) -> str:
    """Whether calls change weights, where they are as large as after training."""
    adapter = audit.adapter()
    scale_weights(adapter, LARGE_WEIGHTS)
    scale_outputs(adapter, LARGE_OUTPUTS)
    before = {name: value.detach().clone() for name, value in adapter.policy.named_parameters()}
    play(adapter, audit.scenario(86, steps=2))
    if not audit.learning_error:
        adapter.learn(audit.segment(85), after_acting=True)
    moved = [name for name, value in adapter.policy.named_parameters() if not torch.equal(value, before[name])]
    return f"a call changes weights, which only the optimiser may: {', '.join(moved[:5])}" if moved else ""


def _keeps_inputs(audit: AuditContext) -> str:
    """Whether outputs change if all steps are acted on with the same tensors, whose contents change."""
    scenario, adapter = audit.scenario(86, steps=4), audit.adapter()
    expected = play(audit.adapter(), scenario).numbers
    buffers, seen = scenario.batch(audit.every_row, 0), []
    for step in range(scenario.steps):
        batch = scenario.batch(audit.every_row, step)
        for name in ("observations", "dones", "truncateds", "noise"):
            getattr(buffers, name).copy_(getattr(batch, name))
        seen.append(adapter.act(buffers).numbers().clone())
    return KEPT if max_difference(torch.stack(seen, 1), expected) > tolerance(expected) else ""


def _moved_buffers(audit: AuditContext, acting: bool) -> list[str]:
    """Names of the buffers in the state dict that calls change: learning, after acting if `acting`."""
    adapter = audit.adapter(own_mode=True)
    names = dict(adapter.policy.named_buffers()).keys() & adapter.policy.state_dict().keys()
    before = {name: value.clone() for name, value in adapter.policy.named_buffers() if name in names}
    if acting:
        play(adapter, audit.scenario(86, steps=3))
    adapter.policy.train()
    after = dict(adapter.policy.named_buffers())
    moved = [name for name, value in before.items() if not torch.equal(after[name], value)]
    adapter.learn(audit.segment(85), after_acting=True)
    after = dict(adapter.policy.named_buffers())
    return sorted({*moved, *(name for name, value in before.items() if not torch.equal(after[name], value))})
