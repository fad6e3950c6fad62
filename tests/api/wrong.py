"""Environments with a mistake each."""

import gymnasium
import numpy as np
from api.echo import Echo
from gymnasium import spaces


class NoReset(gymnasium.Env):
    observation_space, action_space = spaces.Box(0, 1, (2,)), spaces.Discrete(2)


class BadSpace(Echo):
    action_space = spaces.Dict({"a": spaces.Discrete(2)})


class Graphs(Echo):
    observation_space = spaces.Graph(spaces.Box(0, 1, (2,)), None)


class NeedsSize(Echo):
    def __init__(self, size):
        super().__init__()


class WrongShape(Echo):
    observation_space = spaces.Box(0, 1, (2,))

    def _observation(self):
        return np.zeros(3, np.float32)


class NoSpaces(gymnasium.Env):
    pass


class SpaceClass(Echo):
    observation_space = spaces.Box


class OldReset(Echo):
    def reset(self):
        return super().reset()


class Pixels(Echo):
    """Its observation has a small grid, which is played a little to tell pixels from symbols."""

    observation_space = spaces.Dict({"grid": spaces.Box(0, 255, (4, 4, 1), np.uint8)})

    def _observation(self):
        return {"grid": np.zeros((4, 4, 1), np.uint8)}


class ResetWithoutInfo(Pixels):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


class ShowsNothing(Pixels):
    def _observation(self):
        return None if self.time == 2 else super()._observation()


class StepsInFour(Pixels):
    def step(self, action):
        return super().step(action)[:4]


def growing():
    """Makes an environment with a larger observation at each call."""
    made.append(Echo())
    made[-1].observation_space = spaces.Box(0, 1, (len(made),))
    made[-1]._observation = lambda: made[0].observation_space.sample()
    return made[-1]


made = []
