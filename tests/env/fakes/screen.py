"""A Gymnasium environment that shows one image and takes several actions at a time."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Screen(gymnasium.Env):
    """A dot moves over a screen; the reward is its height."""

    action_space = spaces.MultiDiscrete([3, 2])
    observation_space = spaces.Box(0, 255, (20, 18, 3), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.place = 0, self.np_random.integers((20, 18))
        return self._see(), {}

    def step(self, action):
        self.steps += 1
        self.place = (self.place + np.asarray(action) - (1, 0)) % (20, 18)
        return self._see(), float(self.place[0]) / 20, bool(self.place.sum() == 0), self.steps >= 30, {}

    def _see(self):
        image = np.full((20, 18, 3), 40, np.uint8)
        image[tuple(self.place)] = 255
        return image


gymnasium.register("Screen-v0", Screen)
