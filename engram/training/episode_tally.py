"""Whole episodes tallied into an evaluation: estimates of return, length and environment statistics."""

# N agent-episodes, E episodes of environments

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from engram.env.block import Episodes
from engram.env.vector import Batch
from engram.training.estimate import Estimate, estimate


class AgentEstimate(NamedTuple):
    """The estimates of one agent, over the episodes it took part in."""

    returns: Estimate | None
    length: Estimate | None


@dataclass(frozen=True)
class Evaluation:
    """Estimates from whole episodes.

    Agents of one environment are not independent, so their values are averaged within each episode first: intervals
    and deviations are those of episodes, not of agents.
    """

    episodes: int  # of environments, with all their agents
    returns: Estimate
    length: Estimate
    agents: list[AgentEstimate]
    stats: dict[str, Estimate]
    episode_returns: np.ndarray = field(compare=False)  # [E], by environment, then in the order they were played

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

    def record(self, prefix: str = "") -> dict[str, float]:
        """The metrics of this evaluation; the names begin with `prefix`."""
        figures = {
            "return": self.returns.mean,
            "return_low": self.returns.low,
            "return_high": self.returns.high,
            "length": self.length.mean,
        }
        figures |= {name: value.mean for name, value in self.stats.items() if name not in figures}
        return {f"evaluate/{prefix}{name}": value for name, value in figures.items() if value is not None}


class Tally:
    """Collects agent-episodes by episode of the environment, up to a quota per environment."""

    def __init__(self, quota_per_env: np.ndarray, agents: int) -> None:
        self.quota, self.agents = quota_per_env, agents
        self._ended = np.zeros_like(quota_per_env)  # episodes of each environment
        self._first = np.concatenate([[0], np.cumsum(quota_per_env)])  # index of each environment's first episode
        self._indices: list[np.ndarray] = []  # the episode of each agent-episode in _episodes
        self._episodes: list[Episodes] = []

    @property
    def complete(self) -> bool:
        return bool((self._ended >= self.quota).all())

    def add(self, batch: Batch, episodes: Episodes) -> bool:
        """Add the episodes that ended in a step of some environments. Returns whether there were any."""
        envs = episodes.rows // self.agents
        counts = self._ended[envs] < self.quota[envs]
        if counts.any():
            self._indices.append((self._first[envs] + self._ended[envs])[counts])
            self._episodes.append(episodes.select(counts))
        # An episode ends when all agents start over; an agent that ends early starts over alone.
        started = batch.buffers.starts.reshape(-1, self.agents).all(axis=1)
        self._ended[batch.rows.start // self.agents : batch.rows.stop // self.agents] += started
        return len(episodes) > 0

    def result(self) -> Evaluation:
        episodes = Episodes.concatenate(self._episodes)
        indices = np.concatenate(self._indices)
        returns, length = (self._estimate(indices, values) for values in (episodes.returns, episodes.lengths))
        assert returns is not None
        assert length is not None
        agents = []
        for index in range(self.agents):
            own = episodes.rows % self.agents == index
            values = (episodes.returns[own], episodes.lengths[own])
            agents.append(AgentEstimate(*(self._estimate(indices[own], each) for each in values)))
        stats = {name: self._estimate(indices, values) for name, values in sorted(episodes.stats.items())}
        known = {name: value for name, value in stats.items() if value is not None}
        by_episode = self._means(indices, episodes.returns)
        return Evaluation(int(self.quota.sum()), returns, length, agents, known, by_episode)

    def _estimate(self, indices: np.ndarray, values: np.ndarray) -> Estimate | None:
        """Estimate from the means of episodes [E] over their agent-episodes [N], ignoring NaNs."""
        return estimate(self._means(indices, values))

    def _means(self, indices: np.ndarray, values: np.ndarray) -> np.ndarray:
        """The mean of each episode [E] over its agent-episodes [N], ignoring NaNs; NaN for one without values."""
        known = ~np.isnan(values)
        size = int(self.quota.sum())
        sums = np.bincount(indices[known], values[known].astype(np.float64), size)
        counts = np.bincount(indices[known], minlength=size)
        return np.divide(sums, counts, out=np.full(size, np.nan), where=counts > 0)


def _to_json(value: Estimate | None) -> dict[str, Any] | None:
    return None if value is None else value._asdict()
