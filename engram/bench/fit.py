"""Straight lines through measurements: how cost grows with a size."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass
class Fit:
    """y = intercept + slope * x, how much of the points it explains, and how y grows when x doubles at the far end."""

    axis: str  # rows, steps, hidden size squared, epochs
    what: str  # milliseconds, megabytes
    x: list[float]
    y: list[float]
    slope: float
    intercept: float
    r2: float

    @property
    def growth(self) -> float | None:
        """The last value by the first, over what the sizes grew by: 1 is proportional, below 1 cheaper than that."""
        if not self.y[0] or not self.x[0]:
            return None
        return (self.y[-1] / self.y[0]) / (self.x[-1] / self.x[0])


def fit_line(axis: str, what: str, x: Sequence[float], y: Sequence[float]) -> Fit:
    """Least squares. Points that are all alike are explained wholly, by a level line."""
    xs, ys = np.asarray(x, np.float64), np.asarray(y, np.float64)
    centred = xs - xs.mean()
    spread = float((centred**2).sum())
    slope = float((centred * ys).sum() / spread) if spread else 0.0
    intercept = float(ys.mean() - slope * xs.mean())
    rest, total = float(((ys - intercept - slope * xs) ** 2).sum()), float(((ys - ys.mean()) ** 2).sum())
    return Fit(axis, what, xs.tolist(), ys.tolist(), slope, intercept, 1.0 - rest / total if total else 1.0)
