"""CartPole with velocities masked to 0 and rewards scaled by 0.1, and the returns of recent episodes."""

from collections import deque

import gymnasium
import numpy as np
from meter import options

KEEP = np.array([1, 0, 1, 0], np.float32)
REWARD_SCALE = 0.1
RECENT: deque[float] = deque(maxlen=options().get("recent", 200))  # unscaled returns


def recent_return() -> float | None:
    return float(np.mean(RECENT)) if RECENT else None


class MaskedCartPole(gymnasium.Wrapper):
    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._return = 0.0

    def reset(self, **kwargs):
        observation, info = self.env.reset(**kwargs)
        self._return = 0.0
        return observation * KEEP, info

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._return += float(reward)
        if terminated or truncated:
            RECENT.append(self._return)
        return observation * KEEP, reward * REWARD_SCALE, terminated, truncated, info


class CartPoleRows:
    """Environments stepped one after the other, each reset in the step in which its episode ends."""

    def __init__(self, envs: int, seed: int) -> None:
        self.envs = [MaskedCartPole() for _ in range(envs)]
        self.observations = np.stack([env.reset(seed=seed + i)[0] for i, env in enumerate(self.envs)])
        self.rewards, self.starts = np.zeros(envs, np.float32), np.ones(envs, bool)

    def step(self, actions: np.ndarray) -> None:
        for i, env in enumerate(self.envs):
            observation, self.rewards[i], terminated, truncated, _ = env.step(int(actions[i]))
            self.starts[i] = terminated or truncated
            self.observations[i] = env.reset()[0] if self.starts[i] else observation
