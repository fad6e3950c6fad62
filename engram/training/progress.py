"""Progress of a run: agent-steps, epochs and seconds."""

import time
from dataclasses import dataclass, field
from math import ceil

from engram.training.metrics import Record


@dataclass
class Progress:
    steps: int = 0  # agent-steps
    epoch: int = 0
    seconds: float = 0.0  # of training, including the time before a resume
    _last: float = field(default_factory=time.perf_counter)

    def advance(self, steps: int) -> None:
        self.steps += steps
        self.epoch += 1

    def anneal(self, first: float, last: float, total_timesteps: int) -> float:
        """Interpolate linearly from `first` to `last` over the run."""
        return first + (last - first) * min(self.steps / total_timesteps, 1.0)

    def fraction(self, batch_size: int, total_timesteps: int) -> float:
        """The fraction of the run completed at the middle of the coming epoch, strictly between 0 and 1.

        The last epoch fills its batch, so the run may end after `total_timesteps`; this counts whole epochs.
        """
        epochs = max(1, ceil((total_timesteps - self.steps) / batch_size))
        return (self.steps + batch_size / 2) / (self.steps + epochs * batch_size)

    def record(self) -> Record:
        return {"epoch": self.epoch, "steps": self.steps}

    def timing(self, phases: dict[str, float], steps: int) -> Record:
        """Duration and speed of the epoch that just ended. Only `time/` metrics differ between equal runs."""
        now = time.perf_counter()
        elapsed, self._last = now - self._last, now
        self.seconds += elapsed
        durations = {f"time/{phase}_seconds": seconds for phase, seconds in phases.items()}
        return {"time/seconds": self.seconds, "time/steps_per_second": steps / max(elapsed, 1e-9), **durations}
