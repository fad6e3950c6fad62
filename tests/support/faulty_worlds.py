"""A corridor to walk along, and the same with faults that environments of users have."""

import math
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

CELLS, LIMIT = 6, 12


class Corridor(gymnasium.Env):
    """Reward 1 for reaching the last cell, from the second one."""

    observation_space = spaces.Box(0, np.inf, (CELLS,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.cell = self.steps = 0
        self.steps_of_all_episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.cell, self.steps = 1, 0
        return self._observation(), self._info()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self.fault == "actions are ignored":
            action = int(self.np_random.integers(2))
        self.steps += 1
        self.steps_of_all_episodes += 1
        self.cell = min(CELLS - 1, max(0, self.cell + (1 if action else -1)))
        ended = self.cell == CELLS - 1 and self.fault != "same return"
        limited = self.steps >= LIMIT and self.fault != "never ends"
        reward, terminated = self._reward(ended, action), ended and self.fault != "never ends"
        return self._observation(), reward, terminated, limited, self._info()

    def _info(self) -> dict[str, Any]:
        return {"action_mask": np.array([1, 0], np.int8)} if self.fault == "right is masked" else {}

    def _observation(self) -> np.ndarray:
        observation = np.zeros(CELLS, np.float32)
        observation[self.cell] = self.fault != "observation is constant"
        if self.fault == "observation is huge":
            return observation + 1e6
        return observation

    def _reward(self, ended: bool, action: int) -> float:
        if self.fault == "slow":
            time.sleep(0.02)
        if self.fault == "breaks" and self.steps_of_all_episodes > 150:
            return math.nan
        drifted = self.fault == "drifts" and self.steps_of_all_episodes > 900
        rewards = {
            "no reward": 0.0,
            "same return": 1.0,
            "noise": float(self.np_random.normal()),
            "observation is huge": float(self.np_random.normal()),
            "pays for the wrong way": 1.0 if ended else 0.02 * (1 - action),
            "sign is flipped": -float(ended) - 0.01,
            "drifts": -float(ended) if drifted else float(ended),
        }
        return rewards.get(self.fault, float(ended))
