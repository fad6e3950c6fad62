"""A tiny environment of a user's own. It imports no torch, so workers start fast."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Echo(gymnasium.Env):
    """Shows a bit, and pays for naming it `delay` steps later."""

    observation_space = spaces.Dict({"bit": spaces.Discrete(2), "clock": spaces.Box(0, 1, (1,), np.float32)})
    action_space = spaces.Discrete(2)

    def __init__(self, delay: int = 3) -> None:
        self.delay = delay

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.bit = 0, int(self.np_random.integers(2))
        return self._observation(), {}

    def step(self, action):
        self.time += 1
        done = self.time > self.delay
        return self._observation(), float(done and action == self.bit), done, False, {}

    def _observation(self):
        shown = self.bit if self.time == 0 else 0
        return {"bit": shown, "clock": np.array([self.time / (self.delay + 1)], np.float32)}


class Room(Echo):
    """The environment of docs/python.md, which has a size."""

    def __init__(self, size: int = 5) -> None:
        super().__init__()
