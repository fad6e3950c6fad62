"""Tasks as vectors: control tasks with velocities masked to 0, others flattened; and the returns of recent episodes."""

from collections import deque

import gymnasium
import numpy as np
from gymnasium.wrappers import FlattenObservation
from meter import options

VELOCITIES = {"CartPole-v1": [1, 3], "Pendulum-v1": [2], "MountainCarContinuous-v0": [1], "Acrobot-v1": [4, 5]}
ENV, REWARD_SCALE = options().get("env", "CartPole-v1"), options().get("reward_scale", 0.1)
RECENT: deque[float] = deque(maxlen=options().get("recent", 200))  # returns, before rewards are scaled


def recent_return() -> float | None:
    return float(np.mean(RECENT)) if len(RECENT) == RECENT.maxlen else None


def make(name: str) -> gymnasium.Env:
    """Observations are vectors: symbols become one-hots, MiniGrid's view a list of its numbers."""
    env = gymnasium.make(name)
    if "MiniGrid" in name:
        from minigrid.wrappers import ImgObsWrapper

        env = ImgObsWrapper(env)
    space = env.observation_space
    return env if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1 else FlattenObservation(env)


class VectorTask(gymnasium.Wrapper):
    """Environments for evaluation do not count as recent episodes."""

    def __init__(self, name: str, reward_scale: float = 1.0, counted: bool = True) -> None:
        super().__init__(make(name))
        self._scale, self._counted, self._return = reward_scale, counted, 0.0
        self._keep = np.ones(self.observation_space.shape, np.float32)
        self._keep[VELOCITIES.get(name, [])] = 0
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, self._keep.shape, np.float32)

    def reset(self, **kwargs):
        observation, info = self.env.reset(**kwargs)
        self._return = 0.0
        return self._vector(observation), info

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._return += float(reward)
        if self._counted and (terminated or truncated):
            RECENT.append(self._return)
        return self._vector(observation), float(reward) * self._scale, terminated, truncated, info

    def _vector(self, observation: np.ndarray) -> np.ndarray:
        return np.multiply(observation, self._keep, dtype=np.float32)


def from_options() -> VectorTask:
    """The environment that the command line names: CartPole with rewards scaled by 0.1, if it names none."""
    return VectorTask(ENV, REWARD_SCALE)


class Rows:
    """Environments stepped one after the other, each reset in the step in which its episode ends."""

    def __init__(self, envs: int, seed: int) -> None:
        self.envs = [from_options() for _ in range(envs)]
        self.observation_space, self.action_space = self.envs[0].observation_space, self.envs[0].action_space
        self.observations = np.stack([env.reset(seed=seed + i)[0] for i, env in enumerate(self.envs)])
        self.rewards, self.starts = np.zeros(envs, np.float32), np.ones(envs, bool)

    def step(self, actions: np.ndarray) -> None:
        for i, env in enumerate(self.envs):
            action = actions[i] if self.action_space.shape else int(actions[i])
            observation, self.rewards[i], terminated, truncated, _ = env.step(action)
            self.starts[i] = terminated or truncated
            self.observations[i] = env.reset()[0] if self.starts[i] else observation
