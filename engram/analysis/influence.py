"""The influence of the past: how an agent would have acted had it not seen some earlier steps.

A step is taken out by skipping it: memory stays as it was before, and all later observations are read as recorded.
"""

# T steps, R rows (agents), G groups of steps in the longest episode, B branches, U numbers of memory per row

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engram.agent.metta_agent import MettaAgent
from engram.analysis.distributions import difference
from engram.analysis.memory_step import MemoryStep
from engram.analysis.recording import Recording

BUDGET = 800_000  # steps of the policy, over all branches

ALONE, ERASED = 0, 1  # the kinds of branches


class Influence(NamedTuple):
    """Changes of the action distribution, as total variation distances from 0 to 1.

    Groups count from the episode's start: group g of an episode that starts at s is the steps from s + g * `group` on.
    """

    alone: np.ndarray  # [T, R, G]: had the agent not seen the steps of this group
    erased: np.ndarray  # [T, R, G]: had it seen nothing of the episode up to the end of this group
    group: int  # steps per group; 1 unless that were too many branches


class _Branches(NamedTuple):
    """Runs of the agent with different pasts, side by side."""

    rows: Tensor  # [B] the agent
    groups: Tensor  # [B] the group that was taken out
    kinds: Tensor  # [B]
    memory: Tensor  # [B, U]

    def where(self, mask: Tensor) -> "_Branches":
        return _Branches(*(field[mask] for field in self))

    def plus(self, other: "_Branches") -> "_Branches":
        return _Branches(*(torch.cat(pair) for pair in zip(self, other, strict=True)))


def influence(agent: MettaAgent, recording: Recording, budget: int = BUDGET) -> Influence:
    """Take out every step of every episode in turn, or groups of steps if single ones would exceed the budget."""
    step_TR = episode_step(recording)
    group = group_size(step_TR, budget)
    groups = int(step_TR.max()) // group + 1
    changes = torch.zeros(2, *step_TR.shape, groups)
    step = MemoryStep(agent)
    memory = torch.from_numpy(recording.memory)
    expected, alive = torch.from_numpy(recording.distributions), torch.from_numpy(recording.alive)
    nobody = torch.zeros(0, dtype=torch.long)
    branches = _Branches(nobody, nobody, nobody, torch.zeros(0, memory.shape[-1]))
    for t, starts_R in enumerate(torch.from_numpy(recording.starts)):
        branches = branches.where(~starts_R[branches.rows])
        active = branches.where(alive[t][branches.rows])  # an absent agent sees nothing and keeps its memory
        if len(active.rows):
            seen, goes_on = recording.seen(t, active.rows.numpy()), torch.zeros_like(active.rows, dtype=torch.bool)
            after = step(seen, active.memory, goes_on)
            changed = difference(step.action_space, after.distributions, expected[t, active.rows])
            changes[active.kinds, t, active.rows, active.groups] = changed
            branches = branches.where(~alive[t][branches.rows]).plus(active._replace(memory=after.memory))
        branches = branches.plus(_new_branches(t, step_TR, group, memory, alive[t]))
    return Influence(changes[ALONE].numpy(), changes[ERASED].numpy(), group)


def episode_step(recording: Recording) -> Tensor:
    """The number of steps since memory was last empty, [T, R]."""
    count_R = torch.full((recording.starts.shape[1],), -1)
    counts = []
    for starts_R in torch.from_numpy(recording.starts):
        count_R = torch.where(starts_R, 0, count_R + 1)
        counts.append(count_R)
    return torch.stack(counts)


def group_size(episode_step_TR: Tensor, budget: int) -> int:
    """Steps per group, so that all branches together take at most about `budget` steps of the policy."""
    # At its n-th step, an episode has n branches of either kind.
    return max(1, math.ceil(2 * int(episode_step_TR.sum()) / budget))


def _new_branches(t: int, episode_step_TR: Tensor, group: int, memory_TRU: Tensor, alive_R: Tensor) -> _Branches:
    """Branches for the groups that end with step t: memory from before the group, and no memory."""
    step_R = episode_step_TR[t]
    rows = torch.nonzero(((step_R + 1) % group == 0) & alive_R).flatten()
    groups = step_R[rows] // group
    before = torch.zeros(len(rows), memory_TRU.shape[-1])
    later = groups > 0  # before the first group, memory is empty
    before[later] = memory_TRU[t - group, rows[later]]
    kinds = torch.full_like(rows, ALONE)
    alone = _Branches(rows, groups, kinds, before)
    return alone.plus(_Branches(rows, groups, torch.full_like(rows, ERASED), torch.zeros_like(before)))
