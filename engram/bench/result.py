"""The result of a benchmark: races, linear fits and thresholds, with the machine and the date, as one JSON file."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from engram.bench.machine import describe
from engram.bench.race import Race

SCHEMA = 1


@dataclass
class Fit:
    """A linear fit y = intercept + slope * x, with the fraction of the variance that it explains."""

    axis: str  # rows, steps, hidden size squared, epochs
    what: str  # milliseconds, megabytes
    x: list[float]
    y: list[float]
    slope: float
    intercept: float
    r2: float

    @property
    def growth(self) -> float | None:
        """Growth of y divided by growth of x, from first to last: 1 is proportional, below 1 is sublinear."""
        if not self.y[0] or not self.x[0]:
            return None
        return (self.y[-1] / self.y[0]) / (self.x[-1] / self.x[0])


def fit_line(axis: str, what: str, x: Sequence[float], y: Sequence[float]) -> Fit:
    """Least squares. Constant points give slope 0 and r2 1."""
    xs, ys = np.asarray(x, np.float64), np.asarray(y, np.float64)
    centred = xs - xs.mean()
    spread = float((centred**2).sum())
    slope = float((centred * ys).sum() / spread) if spread else 0.0
    intercept = float(ys.mean() - slope * xs.mean())
    residual, total = float(((ys - intercept - slope * xs) ** 2).sum()), float(((ys - ys.mean()) ** 2).sum())
    return Fit(axis, what, xs.tolist(), ys.tolist(), slope, intercept, 1.0 - residual / total if total else 1.0)


@dataclass
class Threshold:
    """A ratio that must not fall below or rise above a limit."""

    what: str
    ratio: float | None
    at_least: float | None = None
    at_most: float | None = None

    @property
    def met(self) -> bool | None:
        """None: not measured."""
        if self.ratio is None:
            return None
        return (self.at_least is None or self.ratio >= self.at_least) and (
            self.at_most is None or self.ratio <= self.at_most
        )


@dataclass
class BenchResult:
    verb: str
    options: dict[str, Any]
    races: list[Race] = field(default_factory=list)
    fits: list[Fit] = field(default_factory=list)
    thresholds: list[Threshold] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=describe)
    date: str = field(default_factory=lambda: datetime.now().astimezone().isoformat(timespec="seconds"))

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "verb": self.verb,
            "date": self.date,
            "machine": self.machine,
            "options": self.options,
            "races": [asdict(race) for race in self.races],
            "fits": [asdict(fit) for fit in self.fits],
            "thresholds": [{**asdict(threshold), "met": threshold.met} for threshold in self.thresholds],
        }


def write(content: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def default_path(result: BenchResult) -> Path:
    """A new file for every measurement, such as bench-results/core-2026-05-01-153012.json."""
    moment = datetime.fromisoformat(result.date)
    return Path("bench-results", f"{result.verb}-{moment:%Y-%m-%d-%H%M%S}.json")
