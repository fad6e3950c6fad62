"""The influence of the past: how an agent would have acted without having seen some earlier steps.

`influence` skips each step in turn: memory stays as it was before, and the agent reads all later observations as
recorded. `memory_horizon` erases memory and measures how the actions differ k steps later.
"""

# T steps, R rows (agents), G groups of steps in the longest episode, B or M branches, K lags, U memory units per row

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engram.agent.metta_agent import MettaAgent
from engram.analysis.memory_step import MemoryStep, total_variation
from engram.analysis.recording import Recording
from engram.training.statistics import Estimate, estimate

SKIPPING_BUDGET = 800_000  # steps of the policy, over all branches
SKIPPED, ERASED = 0, 1  # kinds of branches: without one group of steps, or without all steps up to that group

HORIZON_BRANCHES = 512
HORIZON_BUDGET = 200_000  # steps of the policy, over all branches
ALL_LAGS_UP_TO = 16  # longer episodes are measured at MAX_LAGS lags only
MAX_LAGS = 32
MIN_SAMPLES_PER_LAG = 20
STRONG_QUANTILE = 0.9


class Influence(NamedTuple):
    """Changes of the action distribution, as total variation distances from 0 to 1.

    Groups count from the episode's start: group g of an episode that starts at s is the steps from s + g * `group` on.
    """

    skipped: np.ndarray  # [T, R, G]: without the steps of this group
    erased: np.ndarray  # [T, R, G]: without any step of the episode up to the end of this group
    group: int  # steps per group; 1 unless that would exceed the budget


class _Branches(NamedTuple):
    """Replays of the rest of an episode, each with a different memory."""

    rows: Tensor  # [B] the agent
    groups: Tensor  # [B] the last group that was skipped
    kinds: Tensor  # [B] SKIPPED or ERASED
    memory: Tensor  # [B, U]

    def select(self, mask: Tensor) -> "_Branches":
        return _Branches(*(field[mask] for field in self))

    def append(self, other: "_Branches") -> "_Branches":
        return _Branches(*(torch.cat(pair) for pair in zip(self, other, strict=True)))


def influence(agent: MettaAgent, recording: Recording, budget: int = SKIPPING_BUDGET) -> Influence:
    """Skip every step of every episode in turn, or groups of steps if single steps would exceed the budget."""
    step_TR = episode_step(recording)
    group = group_size(step_TR, budget)
    groups = int(step_TR.max()) // group + 1
    changes = torch.zeros(2, *step_TR.shape, groups)
    step = MemoryStep(agent)
    memory = torch.from_numpy(recording.memory)
    expected, alive = torch.from_numpy(recording.distributions), torch.from_numpy(recording.alive)
    none = torch.zeros(0, dtype=torch.long)
    branches = _Branches(none, none, none, torch.zeros(0, memory.shape[-1]))
    for t, starts_R in enumerate(torch.from_numpy(recording.starts)):
        branches = branches.select(~starts_R[branches.rows])
        active = branches.select(alive[t][branches.rows])  # an absent agent sees nothing and keeps its memory
        if len(active.rows):
            no_starts = torch.zeros_like(active.rows, dtype=torch.bool)
            after = step(recording.inputs(t, active.rows.numpy()), active.memory, no_starts)
            change = total_variation(step.action_space, after.distributions, expected[t, active.rows])
            changes[active.kinds, t, active.rows, active.groups] = change
            branches = branches.select(~alive[t][branches.rows]).append(active._replace(memory=after.memory))
        branches = branches.append(_new_branches(t, step_TR, group, memory, alive[t]))
    return Influence(changes[SKIPPED].numpy(), changes[ERASED].numpy(), group)


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
    # At its n-th step, an episode has n branches of each kind.
    return max(1, math.ceil(2 * int(episode_step_TR.sum()) / budget))


def _new_branches(t: int, episode_step_TR: Tensor, group: int, memory_TRU: Tensor, alive_R: Tensor) -> _Branches:
    """Two branches for each group that ends with step t: with the memory before the group, and with empty memory."""
    step_R = episode_step_TR[t]
    rows = torch.nonzero(((step_R + 1) % group == 0) & alive_R).flatten()
    groups = step_R[rows] // group
    empty = torch.zeros(len(rows), memory_TRU.shape[-1])
    before = empty.clone()
    has_past = groups > 0  # memory is empty before the first group
    before[has_past] = memory_TRU[t - group, rows[has_past]]
    skipped = _Branches(rows, groups, torch.full_like(rows, SKIPPED), before)
    return skipped.append(_Branches(rows, groups, torch.full_like(rows, ERASED), empty))


class Horizon(NamedTuple):
    """Changes of the action distribution, as total variation distances from 0 to 1."""

    lags: list[int]  # k: the agent has seen only the last k observations, the current one included
    change: list[Estimate]  # the mean over steps; its interval is over episodes
    strong: list[float]  # the 90% quantile over steps: a tenth of the actions change by more
    largest: float  # of all lags and steps

    def to_json(self) -> dict[str, Any]:
        return {
            "lags": self.lags,
            "change": [each._asdict() for each in self.change],
            "strong": self.strong,
            "largest": self.largest,
        }


def memory_horizon(agent: MettaAgent, recording: Recording) -> Horizon | None:
    """Erase the memory at random steps and follow the agent from there; None if no episode has two steps."""
    step_TR, alive_TR = episode_step(recording).numpy(), recording.alive
    steps_M, rows_M = np.nonzero((step_TR > 0) & alive_TR)
    if not len(steps_M):
        return None
    longest = int(step_TR.max())
    count = min(len(steps_M), HORIZON_BRANCHES, max(1, HORIZON_BUDGET // longest))
    chosen = np.sort(np.random.default_rng(0).permutation(len(steps_M))[:count])
    changes_KM = _changes_by_lag(agent, recording, steps_M[chosen], rows_M[chosen], longest)
    episodes = episode_ids(recording)[steps_M[chosen], rows_M[chosen]]
    lags, change, strong = [], [], []
    for lag in _lags(longest):
        found = changes_KM[lag - 1]
        known = ~np.isnan(found)
        mean = estimate(group_means(found[known], episodes[known]))
        if mean is not None and (lag == 1 or known.sum() >= MIN_SAMPLES_PER_LAG):
            lags.append(lag)
            change.append(mean)
            strong.append(float(np.quantile(found[known], STRONG_QUANTILE)))
    return Horizon(lags, change, strong, float(np.nanmax(changes_KM)))


def episode_ids(recording: Recording) -> np.ndarray:
    """A number for each episode of each row, [T, R]."""
    rows = recording.starts.shape[1]
    return np.cumsum(recording.starts, axis=0) * rows + np.arange(rows)


def group_means(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The mean of the values of each group."""
    _, index = np.unique(groups, return_inverse=True)
    return np.bincount(index, values) / np.bincount(index) if len(values) else values


def _changes_by_lag(
    agent: MettaAgent, recording: Recording, steps: np.ndarray, rows: np.ndarray, longest: int
) -> np.ndarray:
    """The changes [K, M] in branches that begin with empty memory at these steps; NaN after their episode's end."""
    step = MemoryStep(agent)
    changes = np.full((longest, len(steps)), np.nan, np.float32)
    memory = torch.zeros(len(steps), step.units)
    active = np.arange(len(steps))
    for lag in range(longest):
        now = steps[active] + lag
        inside = now < recording.steps
        active, now = active[inside], now[inside]
        if lag:
            running = ~recording.starts[now, rows[active]] & recording.alive[now, rows[active]]
            active, now = active[running], now[running]
        if not len(active):
            break
        after = step(recording.inputs(now, rows[active]), memory[active], torch.zeros(len(active), dtype=torch.bool))
        memory[active] = after.memory
        expected = torch.from_numpy(recording.distributions[now, rows[active]])
        changes[lag, active] = total_variation(step.action_space, after.distributions, expected)
    return changes


def _lags(longest: int) -> list[int]:
    """All lags if there are few, else spaced geometrically."""
    if longest <= ALL_LAGS_UP_TO:
        return [*range(1, longest + 1)]
    return np.unique(np.geomspace(1, longest, MAX_LAGS).round().astype(int)).tolist()
