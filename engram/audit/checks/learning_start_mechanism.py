"""Causes of faults in learning at an episode start inside a segment, other than clearing too early, late or never."""

from dataclasses import replace
from typing import Any

import torch

from engram.audit.adapters.base import PolicyAdapter, Segment
from engram.audit.context import AuditContext
from engram.audit.difference import max_difference, tolerance
from engram.audit.memory_parts import listed, memory_parts, noise_like
from engram.audit.scenario import play, random_observations

POSITION = "in learning, outputs depend on the position in the segment, also after an episode start"
OTHER_START = "in learning, an episode inside a segment begins from another state than the first of a segment"
START = 3  # the step of a segment at which all rows start


@torch.no_grad()
def learning_start_cause(audit: AuditContext, adapter: PolicyAdapter, segment: Segment, memory: Any) -> str:
    """The cause: the parts of the memory by which the past affects outputs after a start. Empty if unknown."""
    flags = torch.zeros_like(segment.dones)
    flags[:, START] = True
    flagged = replace(segment, dones=flags)
    observations = segment.observations.clone()
    other = random_observations(audit.spec, segment.shape, audit.generator(61))
    observations[:, :START] = other[:, :START]
    others = memory
    for number, part in enumerate(memory_parts(adapter, memory) if memory is not None else ()):
        others = part.changed(others, noise_like(number))
    seen = adapter.learn(flagged, memory).numbers()[:, START:]
    after = adapter.learn(replace(flagged, observations=observations), others).numbers()[:, START:]
    if max_difference(seen, after) > tolerance(seen):
        return _parts_kept(audit)
    observations = segment.observations.clone()
    observations[:] = observations[:, :1]
    repeated = replace(segment, observations=observations, dones=torch.ones_like(segment.dones))
    later = adapter.learn(repeated, memory).numbers()[:, 1:]
    return POSITION if max_difference(later, later[:, :1].expand_as(later)) > tolerance(later) else OTHER_START


def _parts_kept(audit: AuditContext) -> str:
    """The parts of memory that a start leaves: acting with the others set to zero gives what learning gives."""
    scenario, ids = audit.scenario(62, steps=2), list(range(audit.rows))
    adapter = audit.adapter()
    played = play(adapter, scenario)
    adapter = audit.adapter()
    play(adapter, scenario.part(0, 1))
    memory = adapter.memory_of(ids)
    parts = memory_parts(adapter, memory) if memory is not None else []
    flags = torch.zeros_like(scenario.dones)
    flags[:, 1] = True
    learned = audit.adapter().learn(scenario.with_starts(flags).segment(played.actions)).value[:, 1:]
    if len(parts) < 2:
        return ""
    for kept in [[part] for part in parts] + [[each for each in parts if each is not part] for part in parts]:
        trial = adapter.copy()
        for part in parts:
            if part not in kept:
                part.change_in(trial, ids, torch.zeros_like)
        if max_difference(play(trial, scenario.part(1)).value, learned) <= tolerance(learned):
            names = listed([part.name for part in kept])
            return f"in learning, {names} {'is' if len(kept) == 1 else 'are'} not cleared where an episode starts"
    return ""
