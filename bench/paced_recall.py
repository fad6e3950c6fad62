"""Recall for `bench/worker_kills.py`: a cue is queried after 5 to 10 blank steps, and every step may sleep."""

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

CUES = 8
BLANKS = (5, 10)


class PacedRecall(gymnasium.Env):
    """Naming the cue at the query gives reward 1. `pause` makes a small run last for an hour on little of a core."""

    observation_space = spaces.Box(0, 1, (CUES + 1,), np.float32)
    action_space = spaces.Discrete(CUES)

    def __init__(self, pause: float = 0.0) -> None:
        self._pause = pause
        self._cue = self._left = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._cue = int(self.np_random.integers(CUES))
        self._left = int(self.np_random.integers(BLANKS[0], BLANKS[1] + 1))
        return self._observe(self._cue), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self._pause:
            time.sleep(self._pause)
        self._left -= 1
        if self._left < -1:
            return self._observe(None), float(action == self._cue), True, False, {}
        return self._observe(CUES if self._left == -1 else None), 0.0, False, False, {}

    def _observe(self, channel: int | None) -> np.ndarray:
        observation = np.zeros(CUES + 1, np.float32)
        if channel is not None:
            observation[channel] = 1
        return observation
