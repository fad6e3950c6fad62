"""A Gymnasium environment with known observations and rewards, which fails on request."""

import gymnasium
import numpy as np
from gymnasium import spaces

REWARDS = {"none": None, "text": "1.0", "array": np.zeros(2), "one in an array": np.zeros(1)}


class Walk(gymnasium.Env):
    """Shows (episode's secret, step). Ends at step `length` as `ends` says; the reward is the action."""

    action_space = spaces.Discrete(3, start=2)
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def __init__(self, length=3, ends="terminated", bad_step=None, bad="observation", drift=0.0):
        self.length, self.ends, self.bad_step, self.bad, self.drift = length, ends, bad_step, bad, drift
        self.resets = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets += 1
        self.steps, self.secret = 0, self.np_random.random() + self.drift * self.resets
        return self._observe(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.steps += 1
        ended = self.steps >= self.length
        info = {"is_success": True, "score": np.float32(self.steps), "who": "me", "map": np.zeros(2)} if ended else {}
        reward = np.nan if (self.bad, self.steps) == ("reward", self.bad_step) else float(action)
        if (self.bad, self.steps) == ("crash", self.bad_step):
            raise ZeroDivisionError("the walker fell")
        if (self.bad, self.steps) == ("old", self.bad_step):
            return self._observe(), reward, ended, info
        flags = [ended and self.ends != "truncated", ended and self.ends != "terminated"]
        if (self.bad, self.steps) == ("flag", self.bad_step):
            flags[0] = "no"
        if self.bad_step == self.steps and self.bad in REWARDS:
            reward = REWARDS[self.bad]
        return self._observe(), reward, *flags, info

    def _observe(self):
        if self.bad == "shape" and self.bad_step in (None, self.steps):
            return np.zeros(3)
        if self.bad == "bounds" and self.bad_step == self.steps:
            return np.array(["a", "b"])
        broken = (self.bad, self.steps) == ("observation", self.bad_step)
        return np.array([self.secret, np.nan if broken else self.steps])
