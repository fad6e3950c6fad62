"""A Gymnasium environment with a Dict observation of every kind, masks, truncation, and faults on request."""

import gymnasium
import numpy as np
from gymnasium import spaces


class House(gymnasium.Env):
    """The mask allows the action that is equal to the room, and 0."""

    action_space = spaces.Discrete(4)
    observation_space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (9, 8, 3), np.uint8),
            "heat": spaces.Box(0, 1, (6, 6, 1), np.float32),
            "map": spaces.Box(0, 6, (5, 5, 2), np.int64),
            "position": spaces.Box(-1, 1, (3,), np.float64),
            "room": spaces.Discrete(4),
            "task": spaces.Text(20, charset="go to 012"),
        }
    )

    def __init__(self, length=7, fault=None, masks=True):
        self.length, self.fault, self.masks = length, fault, masks
        self.unseeded = np.random.default_rng()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.task = 0, f"go to {self.np_random.integers(3)}"
        return self._see()

    def step(self, action):
        assert not self.masks or action in (0, self.room)
        self.steps += 1
        observation, info = self._see()
        return observation, float(action) / 3, False, self.steps >= self.length, info

    def _see(self):
        random = self.unseeded if self.fault == "seed" else self.np_random
        self.room = int(random.integers(4))
        seen = {
            "camera": random.integers(256, size=(9, 8, 3), dtype=np.uint8),
            "heat": random.random((6, 6, 1), np.float32),
            "map": random.integers(7, size=(5, 5, 2)),
            "position": random.random(3) + (5 if self.fault == "bounds" else 0),
            "room": -1 if self.fault == "discrete" and self.steps == 3 else self.room,
            "task": self.task,
        }
        if self.fault == "key" and self.steps == 3:
            seen["debug"] = self.room
        mask = np.isin(np.arange(4), (0, self.room)).astype(np.int8)
        if self.fault == "mask" and self.steps == 3:
            mask[:] = 0
        return seen, {"action_mask": mask} if self.masks else {}


gymnasium.register("House-v0", House)
