"""The task of a soak: remember a cue, in an environment that fails on command."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

CUES, BLANKS = 4, 2
ORDER = "ENGRAM_SOAK_ORDER"
RAISE, HANG = "raise", "hang"


class CueError(Exception):
    """The failure that an order asks for."""


class Cue(gymnasium.Env):
    """Shows a cue, then blanks, then a query: naming the cue gives reward 1.

    A file at the path in the variable ORDER makes the first environment that finds it raise or hang, once.
    """

    observation_space = spaces.Box(0, 1, (CUES + 1,), np.float32)
    action_space = spaces.Discrete(CUES)

    def __init__(self) -> None:
        self._order = os.environ.get(ORDER, "")
        self._cue = self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._cue, self._step = int(self.np_random.integers(CUES)), 0
        return self._observe(self._cue), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self._order and os.path.exists(self._order):
            self._obey()
        self._step += 1
        if self._step > BLANKS + 1:
            return self._observe(None), float(action == self._cue), True, False, {}
        return self._observe(CUES if self._step == BLANKS + 1 else None), 0.0, False, False, {}

    def _observe(self, channel: int | None) -> np.ndarray:
        observation = np.zeros(CUES + 1, np.float32)
        if channel is not None:
            observation[channel] = 1
        return observation

    def _obey(self) -> None:
        with suppress(FileNotFoundError):  # taken by an environment in a different process
            mine = Path(f"{self._order}.{os.getpid()}")
            Path(self._order).rename(mine)
            order = mine.read_text(encoding="utf-8")
            mine.unlink()
            if order == HANG:
                time.sleep(3600)
            raise CueError("the soak asked for this")
