"""Course: how the return of a run developed, and the means of other metrics over parts of the run."""

import math
from functools import cached_property

import numpy as np

from engram.stored.metrics import Column, Columns

FIRST, LAST = 0.1, 0.2  # fractions of a run that count as its beginning and its end
MIN_STANDARD_ERRORS = 5.0  # between two means that differ
MIN_EPOCHS, MIN_EPISODES = 8, 20  # fewer say nothing about learning
MIN_GAIN = 0.05  # smaller differences do not count, as a fraction of the range of returns
MIN_LOST = 0.5  # a policy is lost if at least this fraction of its gain is gone
MIN_FALL = 0.3  # below the beginning, as a fraction of the range of returns
MAD_OF_NORMAL = 0.6745  # median absolute deviation of a normal distribution, in standard deviations


class Course:
    """Mean returns at the beginning, at the end and at the best of a run, and whether they differ beyond chance."""

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
            self.epochs >= MIN_EPOCHS and len(self.returns.steps) >= MIN_EPOCHS // 2 and self.episodes >= MIN_EPISODES
        )

    @cached_property
    def first(self) -> float:
        """The mean return in the first tenth of the run."""
        return mean_between(self.returns, 0.0, FIRST, self.steps)

    @cached_property
    def start(self) -> float:
        """The return before learning: of the first tenth, or of the first two epochs if they are worse."""
        return min(self.first, float(self.returns.mean[:2].mean())) if len(self.returns.mean) else math.nan

    @cached_property
    def last(self) -> float:
        """The mean return in the last fifth of the run."""
        return mean_between(self.returns, 1 - LAST, 1.0, self.steps)

    @cached_property
    def noise(self) -> float:
        """The standard deviation of an epoch's mean return, without trends.

        Estimated from each return less the mean of its two neighbours, whose variance is 1.5 times as large.
        """
        if len(self.returns.mean) < 3:
            return 0.0
        distances = np.diff(self.returns.mean, 2) / 2
        return float(np.median(np.abs(distances)) / (MAD_OF_NORMAL * math.sqrt(1.5)))

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
        """Whether the return was clearly above the beginning, and most of that gain is gone."""
        gained, kept = self.best - self.start, self.last - self.start
        rose = self._above(self.best, self.first) or self._above(self.best, self.start, epochs=2)
        return rose and kept < (1 - MIN_LOST) * gained and self._above(self.best, self.last)

    @property
    def fell(self) -> bool:
        """Whether the end is clearly below the beginning, by much of the range of returns."""
        return self.start - self.last > MIN_FALL * self.range and self._above(self.start, self.last, epochs=2)

    def _above(self, high: float, low: float, epochs: float = 0.0) -> bool:
        """Whether one mean is above the other beyond chance.

        `epochs`: how many the mean of fewer epochs has; 0: a tenth of the run.
        """
        width = max(epochs or FIRST * len(self.returns.mean), 1.0)
        error = max(self.noise * math.sqrt(2 / width), 1e-9 * max(abs(high), abs(low)))
        return high - low > max(MIN_STANDARD_ERRORS * error, MIN_GAIN * self.range)

    def mean(self, name: str, start: float = 0.0, end: float = 1.0) -> float | None:
        """The mean of a metric between two fractions of the run so far; None if it has no values there."""
        value = mean_between(self.columns[name], start, end, self.steps)
        return None if math.isnan(value) else value


def mean_between(column: Column, start: float, end: float, steps: int) -> float:
    """The mean between two fractions of a run; of the nearest value at that end if there are none between them."""
    if not len(column.steps):
        return math.nan
    inside = (column.steps > start * steps) & (column.steps <= end * steps)
    if not inside.any():
        inside[0 if start == 0.0 else -1] = True
    return float(np.average(column.mean[inside], weights=column.epochs[inside]))
