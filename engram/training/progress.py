"""How far a run has come."""

import time
from dataclasses import dataclass, field
from math import ceil

from engram.training.metrics import Record


@dataclass
class Progress:
    steps: int = 0  # agent-steps
    epoch: int = 0
    seconds: float = 0.0  # of training, over all sittings
    _last: float = field(default_factory=time.perf_counter)

    def advance(self, steps: int) -> None:
        self.steps += steps
        self.epoch += 1

    def anneal(self, first: float, last: float, total_timesteps: int) -> float:
        """From the one to the other over the run."""
        return first + (last - first) * min(self.steps / total_timesteps, 1.0)

    def fraction(self, batch_size: int, total_timesteps: int) -> float:
        """The share of the run that is behind in the middle of the epoch that begins: never 0, never 1.

        The last epoch goes on until its batch is full: with the asked-for steps alone it could lie beyond the end.
        """
        epochs = max(1, ceil((total_timesteps - self.steps) / batch_size))
        return (self.steps + batch_size / 2) / (self.steps + epochs * batch_size)

    def record(self) -> Record:
        return {"epoch": self.epoch, "steps": self.steps}

    def timing(self, phases: dict[str, float], steps: int) -> Record:
        """Seconds and speeds of the epoch that ended now. Named `time/`: all that differs between two equal runs."""
        now = time.perf_counter()
        elapsed, self._last = now - self._last, now
        self.seconds += elapsed
        speeds = {f"time/{phase}_seconds": seconds for phase, seconds in phases.items()}
        return {"time/seconds": self.seconds, "time/steps_per_second": steps / max(elapsed, 1e-9), **speeds}
