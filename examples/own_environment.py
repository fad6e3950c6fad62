"""Train in an environment of your own whose observation is a Dict: a picture and a number arrive as they are."""

import sys

import gymnasium
import numpy as np
from gymnasium import spaces

import engram


class Lamp(gymnasium.Env):
    """A lamp flashes in one of four corners. Some steps later, name the corner."""

    observation_space = spaces.Dict(
        {"picture": spaces.Box(0, 255, (8, 8, 1), np.uint8), "clock": spaces.Box(0, 1, (1,), np.float32)}
    )
    action_space = spaces.Discrete(4)

    def __init__(self, wait=5):
        self.wait = wait

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.corner = 0, int(self.np_random.integers(4))
        return self.observe(), {}

    def step(self, action):
        self.time += 1
        done = self.time > self.wait
        return self.observe(), float(done and action == self.corner), done, False, {}

    def observe(self):
        picture = np.zeros((8, 8, 1), np.uint8)
        if self.time == 0:
            row, column = divmod(self.corner, 2)
            picture[row * 4 : row * 4 + 4, column * 4 : column * 4 + 4] = 255
        return {"picture": picture, "clock": np.array([self.time / (self.wait + 1)], np.float32)}


steps = int(sys.argv[1]) if len(sys.argv) > 1 else 60_000
run = engram.train(Lamp, total_timesteps=steps, run="lamp", seed=1, **{"env.kwargs": {"wait": 3}})
print("mean return:", run.evaluate(episodes=50).returns.mean, "(guessing: 0.25)")
