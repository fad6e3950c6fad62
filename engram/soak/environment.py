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
FAILURE_FILE = "ENGRAM_SOAK_FAILURE_FILE"  # environment variable: the path of a file that asks for a failure
RAISE, HANG = "raise", "hang"  # contents of that file


class CueError(Exception):
    """The requested failure."""


class Cue(gymnasium.Env):
    """Shows a cue, then blanks, then a query: naming the cue gives reward 1.

    The first environment that finds the failure file takes it and raises or hangs, once.
    """

    observation_space = spaces.Box(0, 1, (CUES + 1,), np.float32)
    action_space = spaces.Discrete(CUES)

    def __init__(self) -> None:
        self._failure_file = os.environ.get(FAILURE_FILE, "")
        self._cue = self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._cue, self._step = int(self.np_random.integers(CUES)), 0
        return self._observe(self._cue), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self._failure_file and os.path.exists(self._failure_file):
            self._fail_if_requested()
        self._step += 1
        if self._step > BLANKS + 1:
            return self._observe(None), float(action == self._cue), True, False, {}
        return self._observe(CUES if self._step == BLANKS + 1 else None), 0.0, False, False, {}

    def _observe(self, channel: int | None) -> np.ndarray:
        observation = np.zeros(CUES + 1, np.float32)
        if channel is not None:
            observation[channel] = 1
        return observation

    def _fail_if_requested(self) -> None:
        with suppress(FileNotFoundError):  # taken by an environment in a different process
            taken = Path(f"{self._failure_file}.{os.getpid()}")
            Path(self._failure_file).rename(taken)
            failure = taken.read_text(encoding="utf-8")
            taken.unlink()
            if failure == HANG:
                time.sleep(3600)
            raise CueError("the soak asked for this")
