"""Recordings: whole episodes with the observations, actions and memory of the agent at every step."""

# T steps, R rows (agents), W numbers per action distribution, U memory units per row

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram.agent.metta_agent import MettaAgent
from engram.analysis.memory_step import MemoryStep, StepInputs, entropy, read_units, write_units
from engram.env.block import Episodes, Scene
from engram.env.registry import with_rendering
from engram.env.settings import EnvSettings
from engram.env.spec import EnvSpec
from engram.env.vector import Batch, VectorEnv
from engram.training.evaluate import Player, copy_with_own_memory
from engram.training.settings import EVALUATION_SEED

MIN_STEPS = 64  # without a number of episodes, play until there are this many steps
MAX_STEPS = 1000
MAX_MEMORY_BYTES = 1 << 30  # of recorded memory; the memory of an attention core is large

MemoryChange = Callable[[Tensor, Tensor], Tensor]  # (memory [R, U], steps since the episode's start [R]) -> memory


@dataclass(frozen=True)
class Recording:
    """The data of each step: the observation, then the action on it, then the reward of that action."""

    spec: EnvSpec
    greedy: bool
    seed: int
    observations: np.ndarray  # [T, R, …]
    previous_actions: np.ndarray  # [T, R] or [T, R, n]; of any value where an episode starts
    previous_rewards: np.ndarray  # [T, R]
    starts: np.ndarray  # [T, R]: memory was cleared before this observation
    alive: np.ndarray  # [T, R]
    actions: np.ndarray  # [T, R] or [T, R, n]
    distributions: np.ndarray  # [T, R, W]
    entropies: np.ndarray  # [T, R]
    values: np.ndarray  # [T, R]
    rewards: np.ndarray  # [T, R]
    memory: np.ndarray  # [T, R, U] after the observation
    episode_starts: np.ndarray  # [E]: the first step of each episode of the first environment
    scenes: list[Scene]  # T of them, of the first environment, or none if it cannot be rendered
    episodes: Episodes  # the finished ones
    complete: bool  # whether all requested episodes ended

    @property
    def steps(self) -> int:
        return len(self.starts)

    def inputs(self, *at: Any) -> StepInputs:
        """The inputs of the agent at these steps and rows, apart from memory."""
        return StepInputs(*(torch.from_numpy(getattr(self, name)[at]) for name in StepInputs._fields))


@torch.no_grad()
def record(
    agent: MettaAgent,
    env_settings: EnvSettings,
    *,
    episodes: int | None = None,
    num_envs: int = 1,
    max_steps: int = MAX_STEPS,
    greedy: bool = False,
    seed: int = EVALUATION_SEED,
    memory: str = "carry",
    pictures: bool = True,
    change: MemoryChange | None = None,
) -> Recording:
    """Play `episodes` whole episodes in each environment, by default until there are MIN_STEPS steps.

    The same seed and number of environments give the same episodes as `evaluate`. Playing stops after `max_steps`.
    `change` is applied to all memory before each step.
    """
    device = next(agent.parameters()).device
    player = Player(copy_with_own_memory(agent), device, greedy, memory == "off", seed)
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        VectorEnv(with_rendering(env_settings) if pictures else env_settings, num_envs, seed=seed) as env,
    ):
        torch.manual_seed(seed)  # for policies that draw random numbers themselves
        player.agent.bind(env.spec)
        player.agent.reserve_memory(env.rows)
        played = _play(player, env, episodes, max_steps, pictures, change)
        return Recording(spec=env.spec, greedy=greedy, seed=seed, episodes=env.drain_episodes(), **played)


def _play(
    player: Player, env: VectorEnv, episodes: int | None, max_steps: int, pictures: bool, change: MemoryChange | None
) -> dict[str, Any]:
    """The fields of a recording that are recorded step by step."""
    columns: dict[str, list[np.ndarray]] = {}
    scenes: list[Scene] = []
    first_env_starts, ended = [0], np.zeros(env.num_envs, int)
    memory_step, since_start = MemoryStep(player.agent), np.zeros(env.rows, int)
    max_steps = min(max_steps, max(1, MAX_MEMORY_BYTES // (4 * max(1, memory_step.units) * env.rows)))
    env.reset()
    batch = env.recv()
    for step in range(max_steps):
        if pictures and (scene := env.scene()) is not None:
            scenes.append(scene)
        since_start = np.where(batch.buffers.starts, 0, since_start + 1)
        if change is not None:
            changed = change(read_units(player.agent, env.rows), torch.from_numpy(since_start))
            write_units(player.agent, changed)
        acted = _act(player, memory_step, batch, step)
        env.send(batch, acted["actions"])
        batch = env.recv()
        for name, column in (acted | {"rewards": batch.buffers.rewards.copy()}).items():
            columns.setdefault(name, []).append(column)
        ended += batch.buffers.starts.reshape(env.num_envs, -1).all(1)
        if episodes:
            done = bool((ended >= episodes).all())
        else:
            done = step + 1 >= MIN_STEPS and bool(batch.buffers.starts.all())
        if done:
            break
        if batch.buffers.starts[: env.spec.agents].all() and step + 1 < max_steps:
            first_env_starts.append(step + 1)
    expected = episodes or len(first_env_starts)  # without a number: as many as began in the first environment
    complete = bool((ended >= expected).all())
    stacked = {name: np.stack(column) for name, column in columns.items()}
    return stacked | {"episode_starts": np.array(first_env_starts), "scenes": scenes, "complete": complete}


def _act(player: Player, memory_step: MemoryStep, batch: Batch, step: int) -> dict[str, np.ndarray]:
    """One step: the observation, the agent's outputs, and its memory after them."""
    rows = len(batch.buffers.starts)
    buffers = batch.buffers
    fields = {"observations": buffers.observations, "starts": buffers.starts, "alive": buffers.alive}
    fields |= {"previous_actions": buffers.actions, "previous_rewards": buffers.rewards}
    seen = {name: field.copy() for name, field in fields.items()}
    seen["starts"] |= player.memory_off
    inputs = StepInputs(*(torch.from_numpy(seen[name]) for name in StepInputs._fields))
    output = memory_step(inputs, read_units(player.agent, rows), torch.from_numpy(seen["starts"]))
    return seen | {
        "actions": player.act(batch, step),
        "distributions": output.distributions.numpy(),
        "entropies": entropy(player.agent.action_space, output.distributions).numpy(),
        "values": output.values.numpy(),
        "memory": read_units(player.agent, rows).numpy(),
    }
