"""An environment that raises on rank 1, twice in all."""

import os

import gymnasium
import numpy as np


class Frail(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def __init__(self, counter):
        self.counter = counter

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._look(), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 20 and os.environ["RANK"] == "1" and os.path.getsize(self.counter) < 2:
            with open(self.counter, "a") as file:
                file.write("x")
            raise ArithmeticError("the wheel came off")
        return self._look(), float(action), self.steps % 5 == 0, False, {}

    def _look(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)
