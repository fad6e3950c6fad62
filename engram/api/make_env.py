"""Environments as training makes them, for a user's own loop: one of any kind, or many as rows."""

from contextlib import closing
from typing import Any, NamedTuple, overload

import gymnasium
import numpy as np
from pettingzoo import ParallelEnv

from engram.api.arguments import Env, run_settings
from engram.env import gymnasium as gymnasium_adapter
from engram.env import pettingzoo as pettingzoo_adapter
from engram.env import python as python_adapter
from engram.env.registry import make_spec
from engram.env.settings import EnvSettings, Gym, PettingZoo, PythonEnv
from engram.env.vector import VectorEnv
from engram.env.wrappers import Transform, unwrap_rows
from engram.settings import UserError


@overload
def make_env(env: Env, *, num_envs: None = None, num_workers: int = 0, seed: int = 0, **settings: Any) -> Any: ...
@overload
def make_env(env: Env, *, num_envs: int, num_workers: int = 0, seed: int = 0, **settings: Any) -> VectorEnv: ...
def make_env(env: Env, *, num_envs: int | None = None, num_workers: int = 0, seed: int = 0, **settings: Any) -> Any:
    """One environment with its wrappers, or with `num_envs` a `VectorEnv` of many.

    >>> import engram
    >>> env = engram.make_env("CartPole-v1", wrappers=["mask_velocity"])
    >>> observation, info = env.reset(seed=1)
    >>> float(observation[1])
    0.0
    >>> engram.make_env("recall", delay=20, num_envs=64).rows
    64

    `env` is as in `engram.train`, and `settings` are those of the environment. One environment is a
    `gymnasium.Env`, or a `pettingzoo.ParallelEnv` if the environment is one; it is seeded with `env.reset(seed=…)`.
    """
    if env is None:
        raise UserError("env: None is not an environment: give a name, a class, or a function that makes one")
    if num_envs is not None and not isinstance(num_envs, int):
        raise UserError(f"num_envs: {num_envs!r} is not a whole number")
    named = {name if name.startswith("env.") else f"env.{name}": value for name, value in settings.items()}
    resolved = run_settings(named, env).env
    if num_envs is None:
        return make_single(resolved)
    return VectorEnv(resolved, num_envs, num_workers, seed)


def make_single(settings: EnvSettings) -> Any:
    """One environment with its wrappers: a `gymnasium.Env`, or a `pettingzoo.ParallelEnv` if it is one."""
    if isinstance(settings, Gym):
        return gymnasium_adapter.make(settings)
    if isinstance(settings, PettingZoo):
        return pettingzoo_adapter.make(settings)
    if isinstance(settings, PythonEnv):
        return python_adapter.make(settings)
    return SingleEnv(settings)


class RowSpaces(NamedTuple):
    """The spaces of one agent, and the transforms that training applies to rows of observations."""

    observation: gymnasium.Space
    action: gymnasium.Space
    transforms: list[Transform]


def row_spaces(settings: EnvSettings) -> RowSpaces:
    """The spaces that `make_single` gives each agent."""
    if not isinstance(settings, Gym | PettingZoo | PythonEnv):
        spec = make_spec(settings)
        return RowSpaces(spec.single_observation_space, spec.single_action_space, [])
    with closing(make_single(settings)) as env:
        if isinstance(env, ParallelEnv):
            agent = env.possible_agents[0]
            return RowSpaces(env.observation_space(agent), env.action_space(agent), [])
        inner, transforms = unwrap_rows(env)
        return RowSpaces(inner.observation_space, inner.action_space, transforms)


class SingleEnv(gymnasium.Env):
    """An environment with one agent as a `gymnasium.Env`. Where an episode terminates, its last observation repeats."""

    def __init__(self, settings: EnvSettings) -> None:
        spec = make_spec(settings)
        if spec.agents > 1:
            raise UserError(f"env: {spec.name} has {spec.agents} agents: give num_envs=1 for all of them as rows")
        self._settings = settings
        self._rows: VectorEnv | None = None
        self._next_began = False  # whether `step` has begun the next episode
        self.observation_space, self.action_space = spec.single_observation_space, spec.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        if self._rows is None or seed is not None:
            self.close()
            seed = int(self.np_random.integers(2**31)) if seed is None else seed
            self._rows, self._next_began = VectorEnv(self._settings, num_envs=1, seed=seed), False
        if not self._next_began:
            self._rows.reset()
            self._batch = self._rows.recv()
        self._next_began = False
        return self._batch.buffers.observations[0].copy(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self._rows is None or self._next_began:
            raise RuntimeError("reset() first: no episode is running")
        before = self._batch.buffers.observations[0].copy()
        self._rows.send(self._batch, np.asarray(action)[None])
        self._batch = self._rows.recv()
        buffers = self._batch.buffers
        terminated, truncated = bool(buffers.terminals[0]), bool(buffers.truncations[0])
        self._next_began = terminated or truncated
        observation = buffers.final_observations[0] if truncated else buffers.observations[0]
        if terminated:
            observation = before
        episodes = self._rows.drain_episodes()
        info = {name: float(values[0]) for name, values in episodes.stats.items()} if len(episodes) else {}
        return observation.copy(), float(buffers.rewards[0]), terminated, truncated, info

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()
            self._rows = None
