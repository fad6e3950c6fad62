"""Gymnasium's control tasks with velocities masked to 0, and the returns of recent episodes."""

from collections import deque

import gymnasium
import numpy as np

VELOCITIES = {"CartPole-v1": [1, 3], "Pendulum-v1": [2], "MountainCarContinuous-v0": [1], "Acrobot-v1": [4, 5]}
EPISODES = 20  # that a recent return is the mean of
RECENT: deque[float] = deque(maxlen=EPISODES)


def recent_return() -> float | None:
    return float(np.mean(RECENT)) if len(RECENT) == EPISODES else None


class MaskedControl(gymnasium.Wrapper):
    """Environments for evaluation do not count as recent episodes."""

    def __init__(self, name: str, counted: bool = True) -> None:
        super().__init__(gymnasium.make(name))
        self._counted = counted
        self._keep = np.ones(self.observation_space.shape, np.float32)
        self._keep[VELOCITIES[name]] = 0
        self._return = 0.0

    def reset(self, **kwargs):
        observation, info = self.env.reset(**kwargs)
        self._return = 0.0
        return observation * self._keep, info

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._return += float(reward)
        if self._counted and (terminated or truncated):
            RECENT.append(self._return)
        return observation * self._keep, reward, terminated, truncated, info
