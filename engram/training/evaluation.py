"""What an evaluation found: estimates of return, length and the environment's statistics, from whole episodes."""

# N agent-episodes, E episodes of environments

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from engram.env.block import Episodes
from engram.env.vector import Batch
from engram.training.estimate import Estimate, estimate


class AgentEstimate(NamedTuple):
    """How the agent of one index did, in the episodes it was in."""

    returns: Estimate | None
    length: Estimate | None


@dataclass(frozen=True)
class Evaluation:
    """Estimates from whole episodes.

    The agents of an environment share its luck, so their values are averaged within an episode first: intervals and
    deviations are those of episodes, not of agents, and are honest about how many there were.
    """

    episodes: int  # of environments, with all their agents
    returns: Estimate
    length: Estimate
    agents: list[AgentEstimate]
    stats: dict[str, Estimate]

    def to_json(self) -> dict[str, Any]:
        return {
            "episodes": self.episodes,
            "return": self.returns._asdict(),
            "length": self.length._asdict(),
            "agents": [
                {"agent": index, "return": _to_json(agent.returns), "length": _to_json(agent.length)}
                for index, agent in enumerate(self.agents)
            ],
            "stats": {name: value._asdict() for name, value in self.stats.items()},
        }

    def record(self) -> dict[str, float]:
        """The figures for a run's metrics."""
        figures = {
            "return": self.returns.mean,
            "return_low": self.returns.low,
            "return_high": self.returns.high,
            "length": self.length.mean,
        }
        figures |= {name: value.mean for name, value in self.stats.items() if name not in figures}
        return {f"evaluate/{name}": value for name, value in figures.items() if value is not None}


class Tally:
    """Collects agent-episodes by the episode of the environment they belong to, as long as it counts."""

    def __init__(self, quota_per_env: np.ndarray, agents: int) -> None:
        self.quota, self.agents = quota_per_env, agents
        self._ended = np.zeros_like(quota_per_env)  # episodes of each environment
        self._places = np.concatenate([[0], np.cumsum(quota_per_env)])  # the number of each environment's first episode
        self._numbers: list[np.ndarray] = []  # of the episode that each of the agent-episodes below belongs to
        self._episodes: list[Episodes] = []

    @property
    def complete(self) -> bool:
        return bool((self._ended >= self.quota).all())

    def add(self, batch: Batch, episodes: Episodes) -> bool:
        """What a step of some environments ended; whether that was anything."""
        envs = episodes.rows // self.agents
        counts = self._ended[envs] < self.quota[envs]
        if counts.any():
            self._numbers.append((self._places[envs] + self._ended[envs])[counts])
            self._episodes.append(episodes.select(counts))
        # An environment begins anew when all its agents do; one that leaves early starts over alone.
        anew = batch.buffers.starts.reshape(-1, self.agents).all(axis=1)
        self._ended[batch.rows.start // self.agents : batch.rows.stop // self.agents] += anew
        return len(episodes) > 0

    def result(self) -> Evaluation:
        episodes = Episodes.concatenate(self._episodes)
        numbers = np.concatenate(self._numbers)
        returns, length = (self._estimate(numbers, values) for values in (episodes.returns, episodes.lengths))
        assert returns is not None
        assert length is not None
        agents = []
        for index in range(self.agents):
            own = episodes.rows % self.agents == index
            values = (episodes.returns[own], episodes.lengths[own])
            agents.append(AgentEstimate(*(self._estimate(numbers[own], each) for each in values)))
        stats = {name: self._estimate(numbers, values) for name, values in sorted(episodes.stats.items())}
        known = {name: value for name, value in stats.items() if value is not None}
        return Evaluation(int(self.quota.sum()), returns, length, agents, known)

    def _estimate(self, numbers: np.ndarray, values: np.ndarray) -> Estimate | None:
        """From the means of episodes [E], over those of their agent-episodes [N] that have a value."""
        has = ~np.isnan(values)
        size = int(self.quota.sum())
        sums = np.bincount(numbers[has], values[has].astype(np.float64), size)
        counts = np.bincount(numbers[has], minlength=size)
        return estimate(sums[counts > 0] / counts[counts > 0])


def _to_json(value: Estimate | None) -> dict[str, Any] | None:
    return None if value is None else value._asdict()
