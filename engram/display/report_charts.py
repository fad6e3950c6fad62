"""The charts of a report: which metrics are shown, and their curves, one for each group of equal runs."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from engram.stored.metrics import Column, Columns

PHASES = ("environment", "inference", "learning", "evaluation", "audit")
SECTIONS: dict[str, dict[str, str]] = {  # title -> label of a chart -> metric
    "Learning": {"Return, mean of the last 200 episodes": "return"},
    "Evaluation": {
        "Return, sampled actions": "evaluate/return",
        "Return, most likely actions": "evaluate/greedy_return",
    },
    "Losses": {
        "Policy loss": "loss/policy",
        "Value loss": "loss/value",
        "Entropy": "loss/entropy",
        "KL divergence from the rollout policy": "loss/kl",
        "Clipped ratios": "loss/clip_fraction",
        "Explained variance of the values": "value/explained_variance",
    },
    "Gradient and memory": {
        "Gradient norm, before clipping": "gradient/norm",
        "Gradient norm of the recurrent core": "gradient/norm_recurrent",
        "Replay error of log-probabilities": "memory/replay_error",
        "Memory norm": "memory/norm",
    },
    "Episodes": {"Length": "episode/length"},
    "Throughput": {"Steps per second": "time/steps_per_second"},
}
LOGARITHMIC = {"loss/kl", "gradient/norm", "gradient/norm_recurrent"}
LOWEST = {"value/explained_variance": -1.0}  # a few bad epochs would hide the rest
PERCENT = {"loss/clip_fraction"}
NOT_STATISTICS = {"episode/count", "episode/return", "episode/length"}
MOST_STATISTICS = 24  # charts of the environment's own statistics


class Curve(NamedTuple):
    """A metric of a group of runs, [N] each."""

    group: int
    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Chart(NamedTuple):
    section: str
    title: str
    metric: str
    curves: list[Curve]
    logarithmic: bool = False
    percent: bool = False
    lowest: float | None = None  # lower values are clipped


def charts(groups: Sequence[Sequence[Columns]]) -> list[Chart]:
    """All charts for groups of runs that differ by their seed only; without those that no run has values for."""
    found = []
    for section, metrics in SECTIONS.items():
        for title, metric in {**metrics, **_others(section, groups)}.items():
            found.append(_chart(section, title, metric, groups, _of(metric)))
        if section == "Throughput":
            for phase in PHASES:
                metric, title = f"time/{phase}_seconds", f"Time in {phase}"
                share = _chart(section, title, metric, groups, partial(phase_share, phase=phase))
                found.append(share._replace(percent=True))
            found.append(_chart(section, "Process memory, MB", "process/megabytes", groups, _of("process/megabytes")))
    return [chart for chart in found if chart.curves]


def phase_share(columns: Columns, phase: str) -> Column:
    """The share of the measured time that a phase takes; empty if it is never measured."""
    parts = [columns[f"time/{each}_seconds"] for each in PHASES]
    own = columns[f"time/{phase}_seconds"]
    if not len(own.steps):
        return own
    total = np.zeros_like(own.steps)
    for part in parts:
        seconds = dict(zip(part.steps, part.mean * part.epochs, strict=True))
        total += [seconds.get(step, 0.0) for step in own.steps]
    share = own.mean * own.epochs / np.maximum(total, 1e-12)
    return Column(own.steps, share, share, share, own.epochs)


def _others(section: str, groups: Sequence[Sequence[Columns]]) -> dict[str, str]:
    """The charts of a section that depend on the runs: statistics of environments, and scheduled settings."""
    names = list(dict.fromkeys(name for group in groups for columns in group for name in columns.names))
    if section == "Episodes":
        own = [name for name in names if name.startswith("episode/") and name not in NOT_STATISTICS]
        return {name.removeprefix("episode/"): name for name in own[:MOST_STATISTICS]}
    if section == "Losses":
        scheduled = [name for name in names if name.startswith("schedule/")]
        return {name.removeprefix("schedule/"): name for name in scheduled[:MOST_STATISTICS]}
    return {}


def _of(metric: str) -> Callable[[Columns], Column]:
    return lambda columns: columns[metric]


def _chart(
    section: str, title: str, metric: str, groups: Sequence[Sequence[Columns]], column: Callable[[Columns], Column]
) -> Chart:
    curves = []
    for index, group in enumerate(groups):
        known = [found for columns in group if len((found := column(columns)).steps)]
        if known:
            curves.append(_curve(index, known))
    positive = all((curve.low > 0).all() for curve in curves)
    return Chart(
        section, title, metric, curves, metric in LOGARITHMIC and positive, metric in PERCENT, LOWEST.get(metric)
    )


def _curve(group: int, columns: Sequence[Column]) -> Curve:
    """One run: the mean of its buckets, from minimum to maximum. Several: the mean of the runs, from lowest to highest.

    Runs are compared where all of them have values.
    """
    if len(columns) == 1:
        return Curve(group, *columns[0][:4])
    longest = max(columns, key=lambda column: len(column.steps))
    first = max(column.steps[0] for column in columns)
    last = min(column.steps[-1] for column in columns)
    steps = longest.steps[(longest.steps >= first) & (longest.steps <= last)]
    if not len(steps):
        steps = np.array([last])
    values = np.stack([np.interp(steps, column.steps, column.mean) for column in columns])
    return Curve(group, steps, values.mean(0), values.min(0), values.max(0))
