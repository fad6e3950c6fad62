"""Course: how the return developed over a run, and means of other metrics in parts of it."""

import math
from functools import cached_property

import numpy as np

from engram.stored.metrics import Column, Columns

FIRST, LAST = 0.1, 0.2  # parts of a run that count as its beginning and its end
CERTAIN = 5.0  # standard errors between two means that differ
FEWEST_EPOCHS, FEWEST_EPISODES = 8, 20  # fewer say nothing about learning
GAIN = 0.05  # of the range of returns: smaller improvements do not count
LOST = 0.5  # of what was gained
FALL = 0.3  # of the range of returns


class Course:
    """Levels of the return, in means of epochs, and whether they differ."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.returns = columns["episode/return"]
        self.epochs = columns.epochs
        self.steps = int(columns.last.get("steps", 0))
        counts = columns["episode/count"]
        self.episodes = int((counts.mean * counts.epochs).sum())

    @property
    def long_enough(self) -> bool:
        """Whether there are enough epochs and episodes to say anything about learning."""
        return (
            self.epochs >= FEWEST_EPOCHS
            and len(self.returns.steps) >= FEWEST_EPOCHS // 2
            and self.episodes >= FEWEST_EPISODES
        )

    @cached_property
    def first(self) -> float:
        return part(self.returns, 0.0, FIRST, self.steps)

    @cached_property
    def start(self) -> float:
        """The return before learning: of the first two epochs, if a tenth of the run was enough to learn."""
        return min(self.first, float(self.returns.mean[:2].mean())) if len(self.returns.mean) else math.nan

    @cached_property
    def last(self) -> float:
        return part(self.returns, 1 - LAST, 1.0, self.steps)

    @cached_property
    def noise(self) -> float:
        """The standard deviation of epochs' mean returns around those of their neighbours, which leaves out trends."""
        if len(self.returns.mean) < 3:
            return 0.0
        around = np.diff(self.returns.mean, 2) / 2
        return float(np.median(np.abs(around)) / (0.6745 * math.sqrt(1.5)))

    @cached_property
    def range(self) -> float:
        return float(self.returns.high.max() - self.returns.low.min()) if len(self.returns.steps) else 0.0

    @cached_property
    def smoothed(self) -> np.ndarray:
        """The moving average of the returns over a twentieth of the run, at least three epochs."""
        width = min(max(3, len(self.returns.mean) // 20), len(self.returns.mean))
        return np.convolve(self.returns.mean, np.ones(width) / width, mode="valid") if width else np.zeros(0)

    @cached_property
    def best(self) -> float:
        return float(self.smoothed.max()) if len(self.smoothed) else math.nan

    @property
    def best_step(self) -> int:
        width = len(self.returns.mean) - len(self.smoothed) + 1
        return int(self.returns.steps[int(self.smoothed.argmax()) + width - 1])

    @property
    def improved(self) -> bool:
        """Whether the end is clearly above the beginning."""
        return self._above(self.last, self.first) or self._above(self.last, self.start, epochs=2)

    @property
    def lost(self) -> bool:
        """Whether the run was clearly better than at its beginning, and has lost most of that."""
        gained, kept = self.best - self.start, self.last - self.start
        rose = self._above(self.best, self.first) or self._above(self.best, self.start, epochs=2)
        return rose and kept < (1 - LOST) * gained and self._above(self.best, self.last)

    @property
    def fell(self) -> bool:
        """Whether the end is clearly below the beginning, by much of the range of returns."""
        return self.start - self.last > FALL * self.range and self._above(self.start, self.last, epochs=2)

    def _above(self, high: float, low: float, epochs: float = 0.0) -> bool:
        """Whether two means differ by more than chance. `epochs`: those of the shorter one; 0: a tenth of the run."""
        width = max(epochs or FIRST * len(self.returns.mean), 1.0)
        error = max(self.noise * math.sqrt(2 / width), 1e-9 * max(abs(high), abs(low)))
        return high - low > max(CERTAIN * error, GAIN * self.range)

    def mean(self, name: str, start: float = 0.0, end: float = 1.0) -> float | None:
        """The mean of a metric between two fractions of the run so far; None if it has no values there."""
        value = part(self.columns[name], start, end, self.steps)
        return None if math.isnan(value) else value


def part(column: Column, start: float, end: float, steps: int) -> float:
    """The mean between two fractions of a run; at least of the first or last value."""
    if not len(column.steps):
        return math.nan
    inside = (column.steps > start * steps) & (column.steps <= end * steps)
    if not inside.any():
        inside[0 if start == 0.0 else -1] = True
    return float(np.average(column.mean[inside], weights=column.epochs[inside]))
