"""The result of a benchmark: races, linear fits and thresholds, with machine and date, as JSON and as tables."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from engram import __version__
from engram.bench.race import Entry, Race
from engram.cores import available_cores

SCHEMA = 1
WIDTH = 140  # of the tables, if the output is not a terminal


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
    """A ratio that must be at least or at most a limit."""

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


def describe_machine() -> dict[str, str | int | float]:
    """The properties of this machine that affect speed."""
    return {
        "cpu": _cpu_model(),
        "cores": available_cores(),
        "memory_gigabytes": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "numpy": _version("numpy"),
        "engram": __version__,
        "load_average": round(os.getloadavg()[0], 2),
    }


@dataclass
class BenchResult:
    verb: str
    options: dict[str, Any]
    races: list[Race] = field(default_factory=list)
    fits: list[Fit] = field(default_factory=list)
    thresholds: list[Threshold] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=describe_machine)
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


def wide_console(width: int, console: Console | None = None) -> Console:
    """A console that is wide enough for tables, where the output is not a terminal."""
    console = console or Console()
    if not console.is_terminal:
        console.width = max(console.width, width)
    return console


def show(result: BenchResult, console: Console | None = None) -> None:
    """Print every race, fit and threshold, and the machine below them."""
    console = wide_console(WIDTH, console)
    parts: list[Table | Text] = [part for race in result.races for part in _race_table(race)]
    parts += [_fit_table(result.fits)] if result.fits else []
    parts += [_threshold_table(result.thresholds)] if result.thresholds else []
    machine = result.machine
    parts.append(
        Text(
            f"{machine['cpu']}, {machine['cores']} cores; torch {machine['torch']}, Python {machine['python']}; "
            f"{result.date}; load average before {machine['load_average']}",
            style="dim",
        )
    )
    console.print(Group(*parts))


def _race_table(race: Race) -> list[Table | Text]:
    timed = race.shows == "time"
    phases = list({phase: None for entry in race.entries for phase in entry.phases})
    facts = list({name: None for entry in race.entries for name in entry.facts})
    table = Table(title=race.name, title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    table.add_column("threads", justify="right")
    table.add_column(f"ms per {race.unit.removesuffix('s')}" if timed else f"{race.unit}/s", justify="right")
    table.add_column(f"{'time' if timed else 'speed'} ÷ {race.baseline}", justify="right")
    table.add_column("quartiles", justify="right")
    for phase in phases:
        table.add_column(phase, justify="right")
    for name in facts:
        table.add_column(name, justify="right")
    table.add_column("other load", justify="right")
    failures: list[str] = []
    for entry in race.entries:
        name = " ".join([entry.name, entry.note]).strip()
        if entry.failed is not None or entry.rate is None:
            failures.append(f"{entry.title}: {entry.failed or 'not measured'}")
            continue
        cells = [name, str(entry.threads), _figure(entry, timed), _number(entry.ratio), _spread(entry)]
        cells += [f"{entry.phases[phase]:.0%}" if phase in entry.phases else "" for phase in phases]
        cells += [_fact(entry.facts.get(name, "")) for name in facts]
        table.add_row(*cells, f"{entry.others or 0:.2f}", style="" if entry.best else "dim")
    return [table, *(Text(failure, style="red") for failure in failures)]


def _fit_table(fits: list[Fit]) -> Table:
    table = Table(title="linear fits", title_justify="left", title_style="bold")
    for name in ("against", "what", "from", "to", "values", "slope", "R²", "growth ÷ size"):
        table.add_column(name, justify="left" if name in ("against", "what") else "right", no_wrap=True)
    for fit in fits:
        values = " ".join(f"{value:,.3g}" for value in fit.y[:8]) + (" …" if len(fit.y) > 8 else "")
        table.add_row(
            fit.axis,
            fit.what,
            f"{fit.x[0]:g}",
            f"{fit.x[-1]:g}",
            values,
            f"{fit.slope:.3g}",
            f"{fit.r2:.4f}",
            _number(fit.growth),
        )
    return table


def _threshold_table(thresholds: list[Threshold]) -> Table:
    table = Table(title="thresholds", title_justify="left", title_style="bold")
    for name in ("what", "ratio", "limit", ""):
        table.add_column(name, justify="left" if name == "what" else "right")
    verdicts = {True: Text("met", style="green"), False: Text("not met", style="red"), None: Text("not measured")}
    for threshold in thresholds:
        limit = f"≥ {threshold.at_least:g}" if threshold.at_least is not None else f"≤ {threshold.at_most:g}"
        table.add_row(threshold.what, _number(threshold.ratio), limit, verdicts[threshold.met])
    return table


def _figure(entry: Entry, timed: bool) -> str:
    assert entry.rate is not None
    return f"{1000 / entry.rate:,.3f}" if timed else f"{entry.rate:,.0f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _spread(entry: Entry) -> str:
    return "" if entry.low is None else f"{entry.low:.2f} to {entry.high:.2f}"


def _fact(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.0f}"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    flags = next((line for line in lines if line.startswith("flags")), "")
    wide = [name for name, flag in (("AVX-512", "avx512f"), ("AVX2", "avx2")) if f" {flag}" in flags]
    return " ".join([names[0] if names else platform.machine(), *(f"({name})" for name in wide[:1])])


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
