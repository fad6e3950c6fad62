"""Recordings: whole episodes of one environment, with everything that the agent saw, did and remembered."""

# T steps, R rows (agents), W numbers per action distribution, U numbers of memory per row

from dataclasses import dataclass

import numpy as np
import torch

from engram.agent.metta_agent import MettaAgent
from engram.analysis.distributions import entropy
from engram.analysis.memory_step import MemoryStep, stored_memory
from engram.env.block import Episodes
from engram.env.scene import Scene, drawable
from engram.env.settings import EnvSettings
from engram.env.spec import EnvSpec
from engram.env.vector import VectorEnv
from engram.training.evaluate import Player, copy_with_own_memory
from engram.training.settings import EVALUATION_SEED

FEW_STEPS = 64  # more episodes follow until there are as many
MANY_STEPS = 1000


@dataclass(frozen=True)
class Recording:
    """What happened at each step: the observation, then the action on it, then the reward of that action."""

    spec: EnvSpec
    greedy: bool
    seed: int
    observations: np.ndarray  # [T, R, …]
    starts: np.ndarray  # [T, R]: memory was cleared before this observation
    alive: np.ndarray  # [T, R]
    actions: np.ndarray  # [T, R] or [T, R, n]
    distributions: np.ndarray  # [T, R, W]
    entropies: np.ndarray  # [T, R]
    values: np.ndarray  # [T, R]
    rewards: np.ndarray  # [T, R]
    memory: np.ndarray  # [T, R, U] after the observation
    episode_starts: np.ndarray  # [E]: the first step of each episode
    scenes: list[Scene]  # T of them, or none if the environment cannot be drawn
    episodes: Episodes  # that ended
    complete: bool  # whether the last episode ended

    @property
    def steps(self) -> int:
        return len(self.starts)


@torch.no_grad()
def record(
    agent: MettaAgent,
    env_settings: EnvSettings,
    *,
    episodes: int | None = None,
    max_steps: int = MANY_STEPS,
    greedy: bool = False,
    seed: int = EVALUATION_SEED,
    memory: str = "carry",
    pictures: bool = True,
) -> Recording:
    """Play whole episodes of one environment: so many, or as many as it takes for FEW_STEPS; at most `max_steps`.

    They are those of `evaluate` with the same seed and one environment.
    """
    player = Player(copy_with_own_memory(agent), next(agent.parameters()).device, greedy, memory == "off", seed)
    columns: dict[str, list[np.ndarray]] = {}
    scenes: list[Scene] = []
    episode_starts, ended = [0], 0
    with VectorEnv(drawable(env_settings) if pictures else env_settings, 1, seed=seed) as env:
        player.agent.bind(env.spec)
        memory_step = MemoryStep(player.agent)
        player.agent.reserve_memory(env.rows)
        torch.manual_seed(seed)
        env.reset()
        batch = env.recv()
        for step in range(max_steps):
            scene = env.scene() if pictures else None
            if scene is not None:
                scenes.append(scene)
            seen = {name: getattr(batch.buffers, name).copy() for name in ("observations", "starts", "alive")}
            seen["starts"] |= memory == "off"
            judged = memory_step(
                torch.from_numpy(seen["observations"]),
                stored_memory(player.agent, env.rows),
                torch.from_numpy(seen["starts"]),
            )
            actions = player.act(batch, step)
            env.send(batch, actions)
            batch = env.recv()
            happened = seen | {
                "actions": actions,
                "distributions": judged.distributions.numpy(),
                "entropies": entropy(player.agent.action_space, judged.distributions).numpy(),
                "values": judged.values.numpy(),
                "rewards": batch.buffers.rewards.copy(),
                "memory": stored_memory(player.agent, env.rows).numpy(),
            }
            for name, column in happened.items():
                columns.setdefault(name, []).append(column)
            if batch.buffers.starts.all():
                ended += 1
                if ended == episodes or (episodes is None and step + 1 >= FEW_STEPS):
                    break
                episode_starts.append(step + 1)
        finished = env.drain_episodes()
    steps = len(columns["starts"])
    return Recording(
        spec=env.spec,
        greedy=greedy,
        seed=seed,
        episode_starts=np.array([start for start in episode_starts if start < steps]),
        scenes=scenes,
        episodes=finished,
        complete=ended == len([start for start in episode_starts if start < steps]),
        **{name: np.stack(column) for name, column in columns.items()},
    )
