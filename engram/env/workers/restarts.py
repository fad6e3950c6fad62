"""Restarts of failed environments: how many are allowed, and the result of the step that was interrupted."""

import logging
import time
from collections import deque
from enum import Enum

from engram.env.errors import EnvError

WINDOW_SECONDS = 600.0  # restarts within this time count against the limit

log = logging.getLogger("engram")


class Interrupted(Enum):
    """The result of a worker's share of a batch whose environments were restarted: the last actions have no outcome."""

    INTERRUPTED = True


INTERRUPTED = Interrupted.INTERRUPTED


class Restarts:
    """Counts restarts. More than `limit` within ten minutes are an error; with a limit of 0, the first failure is.

    `bad_numbers`: an environment that gives NaN or infinity is restarted too, instead of ending the run.
    """

    def __init__(self, limit: int = 0, bad_numbers: bool = False) -> None:
        self.limit, self.bad_numbers, self.count = limit, bad_numbers, 0
        self._times: deque[float] = deque(maxlen=limit)

    def allow(self, failure: EnvError) -> None:
        """Counts a restart after this failure and warns about it. Raises the failure if the limit is exceeded."""
        now = time.monotonic()
        if len(self._times) == self.limit and (not self.limit or now - self._times[0] < WINDOW_SECONDS):
            raise type(failure)(f"{failure}{self._exhausted()}") from failure.__cause__
        self._times.append(now)
        self.count += 1
        log.warning("%s\nRestarted; its environments begin new episodes (restart %s).", failure, self.count)

    def _exhausted(self) -> str:
        if not self.limit:
            return ""
        restarts = f"{self.limit} restart{'s' * (self.limit > 1)}"
        return f"\nThis was after {restarts} within {WINDOW_SECONDS / 60:g} minutes (trainer.worker_restarts)."
