"""Evaluation: plays whole episodes with a copy of the agent and its own memory, and estimates return and length.

The number of episodes per environment is fixed in advance. Taking the first N episodes that end anywhere would favour
short episodes.
"""

# B rows of a batch, D random numbers per action, N agent-episodes, E episodes of environments

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from engram.agent.metta_agent import MettaAgent
from engram.env.block import Episodes
from engram.env.splitmix import fold, uniform
from engram.env.vector import Batch, VectorEnv
from engram.settings import UserError
from engram.training.device import Threads
from engram.training.settings import EVALUATION_SEED
from engram.training.statistics import Estimate, estimate

MAX_STEPS_WITHOUT_END = 100_000  # then no episode is expected to end at all

_ACTIONS = 0x41637473  # keeps action noise apart from what environments draw with the same hash


@torch.no_grad()
def evaluate(
    agent: MettaAgent,
    env_settings: Any,
    episodes: int,
    *,
    greedy: bool = False,
    seed: int = EVALUATION_SEED,
    num_envs: int = 32,
    num_workers: int = 0,
    memory: str = "carry",
    step_timeout: float = 20.0,
    on_hang: Callable[[str], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """Play `episodes` whole episodes, spread evenly over the environments. The agent is not changed.

    The same agent, seed and number of environments give the same episodes, for any number of workers. `greedy` takes
    the most likely action; otherwise actions are sampled. Memory lasts for an episode, unless `memory` is "off".
    `stop` is called at every step; if it returns true, this raises `EvaluationStoppedError`.
    """
    num_envs = min(num_envs, episodes)
    workers = min(num_workers, num_envs)
    quota = np.full(num_envs, episodes // num_envs)
    quota[: episodes % num_envs] += 1
    device = next(agent.parameters()).device
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        VectorEnv(env_settings, num_envs, workers, seed, step_timeout=step_timeout, on_hang=on_hang) as env,
        Threads(num_workers, env.rows, len(env.batches)).while_acting(),
    ):
        torch.manual_seed(seed)  # for policies that draw random numbers themselves
        player = Player(copy_with_own_memory(agent), device, greedy, memory == "off", seed)
        player.agent.bind(env.spec)
        return _play(player, env, Tally(quota, env.spec.agents), stop)


def copy_with_own_memory(agent: MettaAgent) -> MettaAgent:
    """A copy for evaluation that shares the weights and has an empty memory."""
    shared = {id(parameter): parameter for parameter in agent.parameters()}
    try:
        copied = copy.deepcopy(agent, shared)
    except (TypeError, RuntimeError) as error:
        raise UserError(
            f"evaluation plays with a copy of the policy, and {type(agent.policy).__name__} cannot be copied "
            f"({error}): do not keep objects that cannot be copied in its attributes"
        ) from error
    copied.eval()
    copied.reset_memory()
    return copied


class EvaluationStoppedError(Exception):
    """The caller asked to stop before all episodes had ended."""


class Player:
    """Chooses actions with noise that depends on row and step only, not on how rows are batched."""

    def __init__(self, agent: MettaAgent, device: torch.device, greedy: bool, memory_off: bool, seed: int) -> None:
        self.agent, self.device, self.greedy, self.memory_off = agent, device, greedy, memory_off
        self._key = fold(fold(np.zeros(1, np.uint64), _ACTIONS), seed)

    def act(self, batch: Batch, step: int) -> np.ndarray:
        count = batch.rows.stop - batch.rows.start
        fields = {
            "env_obs": batch.buffers.observations,
            "dones": batch.buffers.terminals,
            "truncateds": batch.buffers.truncations,
            "starts": batch.buffers.starts | self.memory_off,
            "previous_actions": batch.buffers.actions,
            "previous_rewards": batch.buffers.rewards,
        }
        tensors = {name: torch.from_numpy(field).to(self.device) for name, field in fields.items()}
        tensors["training_env_id_start"] = torch.full((count,), batch.rows.start, device=self.device)
        tensors["action_noise"] = self._noise(batch.rows, step)
        td = self.agent(TensorDict(tensors, batch_size=[count]))
        actions = td["actions"]
        if self.greedy:
            actions = self.agent.action_space.greedy(td["full_log_probs"], actions)
        return actions.cpu().numpy()

    def _noise(self, rows: slice, step: int) -> Tensor:
        """Uniform numbers [B, D]; 0.5 for greedy actions, which gives the mean of continuous ones."""
        size = self.agent.action_space.noise
        if self.greedy:
            return torch.full((rows.stop - rows.start, size), 0.5, device=self.device)
        keys = fold(fold(self._key, np.arange(rows.start, rows.stop)), step)
        noise = np.stack([uniform(keys, number) for number in range(size)], axis=-1)
        return torch.from_numpy(noise.astype(np.float32)).to(self.device)


def _play(player: Player, env: VectorEnv, tally: Tally, stop: Callable[[], bool]) -> Evaluation:
    player.agent.reserve_memory(env.rows)
    env.reset()
    steps = dict.fromkeys((rows.start for rows in env.batches), 0)
    since_end = 0  # batches received since the last episode ended
    while not tally.complete:
        if stop():
            raise EvaluationStoppedError
        batch = env.recv()
        first = batch.rows.start
        if steps[first]:
            since_end = 0 if tally.add(batch, env.drain_episodes()) else since_end + 1
        if since_end > MAX_STEPS_WITHOUT_END * len(env.batches):
            raise UserError(
                f"evaluation: no episode of {env.spec.name} ended within {MAX_STEPS_WITHOUT_END:,} steps: limit their "
                "length (env.max_steps, if the environment has it)"
            )
        env.send(batch, player.act(batch, steps[first]))
        steps[first] += 1
    return tally.result()


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
    """Groups the episodes of agents by the environment's episode they belong to, up to a quota per environment."""

    def __init__(self, quota_per_env: np.ndarray, agents: int) -> None:
        self.quota, self.agents = quota_per_env, agents
        self._ended = np.zeros_like(quota_per_env)  # episodes of each environment
        self._first = np.concatenate([[0], np.cumsum(quota_per_env)])  # index of each environment's first episode
        self._indices: list[np.ndarray] = []  # for each entry of _episodes, the environment's episode it belongs to
        self._episodes: list[Episodes] = []

    @property
    def complete(self) -> bool:
        return bool((self._ended >= self.quota).all())

    def add(self, batch: Batch, episodes: Episodes) -> bool:
        """Add the episodes that ended in a step of some environments. Returns whether there were any."""
        envs = episodes.rows // self.agents
        counted = self._ended[envs] < self.quota[envs]
        if counted.any():
            self._indices.append((self._first[envs] + self._ended[envs])[counted])
            self._episodes.append(episodes.select(counted))
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
