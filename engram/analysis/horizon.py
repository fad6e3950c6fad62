"""The memory horizon: how much an agent's actions change when its memory was erased k steps ago."""

# T steps, R rows, M branches, K lags

from typing import Any, NamedTuple

import numpy as np
import torch

from engram.agent.metta_agent import MettaAgent
from engram.analysis.distributions import difference
from engram.analysis.influence import episode_step
from engram.analysis.memory_step import MemoryStep
from engram.analysis.recording import Recording
from engram.training.estimate import Estimate, estimate

BRANCHES = 512
BUDGET = 200_000  # steps of the policy, over all branches
SHOWN_LAGS = 32
FEWEST = 20  # steps that a lag is measured at
STRONG = 0.9  # the quantile of the actions that depend on memory most


class Horizon(NamedTuple):
    """Changes of the action distribution, as total variation distances from 0 to 1."""

    lags: list[int]  # k: the agent has seen only the last k observations, the current one included
    change: list[Estimate]  # the mean over steps; its interval is over episodes
    strong: list[float]  # the 90% quantile over steps
    largest: float

    def to_json(self) -> dict[str, Any]:
        return {
            "lags": self.lags,
            "change": [each._asdict() for each in self.change],
            "strong": self.strong,
            "largest": self.largest,
        }


def memory_horizon(agent: MettaAgent, recording: Recording, seed: int = 0) -> Horizon | None:
    """Erase the memory at random steps and follow the agent from there; None if no episode has two steps."""
    step_TR, alive_TR = episode_step(recording).numpy(), recording.alive
    steps_M, rows_M = np.nonzero((step_TR > 0) & alive_TR)
    if not len(steps_M):
        return None
    longest = int(step_TR.max())
    count = min(len(steps_M), BRANCHES, max(1, BUDGET // longest))
    chosen = np.sort(np.random.default_rng(seed).permutation(len(steps_M))[:count])
    changes_KM = _follow(agent, recording, steps_M[chosen], rows_M[chosen], longest)
    episodes = episode_ids(recording)[steps_M[chosen], rows_M[chosen]]
    lags, change, strong = [], [], []
    for lag in _lags(longest):
        found = changes_KM[lag - 1]
        known = ~np.isnan(found)
        mean = estimate(_means(found[known], episodes[known]))
        if mean is not None and (lag == 1 or known.sum() >= FEWEST):
            lags.append(lag)
            change.append(mean)
            strong.append(float(np.quantile(found[known], STRONG)))
    return Horizon(lags, change, strong, float(np.nanmax(changes_KM)))


def episode_ids(recording: Recording) -> np.ndarray:
    """A number for each episode of each row, [T, R]."""
    rows = recording.starts.shape[1]
    return np.cumsum(recording.starts, axis=0) * rows + np.arange(rows)


def _follow(agent: MettaAgent, recording: Recording, steps: np.ndarray, rows: np.ndarray, longest: int) -> np.ndarray:
    """The changes [K, M] of branches that begin with empty memory at these steps; NaN after their episode's end."""
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
        after = step(recording.seen(now, rows[active]), memory[active], torch.zeros(len(active), dtype=torch.bool))
        memory[active] = after.memory
        expected = torch.from_numpy(recording.distributions[now, rows[active]])
        changes[lag, active] = difference(step.action_space, after.distributions, expected)
    return changes


def _lags(longest: int) -> list[int]:
    """All lags if there are few, else spaced geometrically."""
    return (
        np.unique(np.geomspace(1, longest, SHOWN_LAGS).round().astype(int)).tolist()
        if longest > 16
        else [*range(1, longest + 1)]
    )


def _means(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The mean of the values of each group."""
    _, index = np.unique(groups, return_inverse=True)
    return np.bincount(index, values) / np.bincount(index) if len(values) else values
