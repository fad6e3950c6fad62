"""The report of one or several runs: charts of their metrics, as an HTML page and as PNG files for papers."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engram.display.page import page
from engram.display.progress import EPISODE_FIGURES
from engram.settings import UserError
from engram.stored.metrics import Column, Columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
MAX_STATISTICS = 24  # charts of the environment's own statistics
COLOURS = ("#2f66b5", "#c2571b", "#0f7a56", "#8a3fa8", "#a8324a", "#8a6d00", "#1f8796", "#5a6878")
STYLES = ("-", "--", ":", "-.")
DPI = 300
COLUMNS = 3


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
    """All charts that have values, for groups of runs that differ by their seed only."""
    found = []
    for section, metrics in SECTIONS.items():
        for title, metric in {**metrics, **_charts_of_runs(section, groups)}.items():
            found.append(_chart(section, title, metric, groups, _reader(metric)))
        if section == "Throughput":
            for phase in PHASES:
                metric, title = f"time/{phase}_seconds", f"Time in {phase}"
                chart = _chart(section, title, metric, groups, partial(phase_fraction, phase=phase))
                found.append(chart._replace(percent=True))
            megabytes = "process/megabytes"
            found.append(_chart(section, "Process memory, MB", megabytes, groups, _reader(megabytes)))
    return [chart for chart in found if chart.curves]


def phase_fraction(columns: Columns, phase: str) -> Column:
    """The fraction of the measured time that a phase takes; empty if it is never measured."""
    parts = [columns[f"time/{each}_seconds"] for each in PHASES]
    own = columns[f"time/{phase}_seconds"]
    if not len(own.steps):
        return own
    total = np.zeros_like(own.steps)
    for part in parts:
        seconds = dict(zip(part.steps, part.mean * part.epochs, strict=True))
        total += [seconds.get(step, 0.0) for step in own.steps]
    fraction = own.mean * own.epochs / np.maximum(total, 1e-12)
    return Column(own.steps, fraction, fraction, fraction, own.epochs)


def _charts_of_runs(section: str, groups: Sequence[Sequence[Columns]]) -> dict[str, str]:
    """The charts of a section that depend on the runs: statistics of environments, and scheduled settings."""
    names = list(dict.fromkeys(name for group in groups for columns in group for name in columns.names))
    if section == "Episodes":
        own = [name for name in names if name.startswith("episode/") and name not in EPISODE_FIGURES]
        return {name.removeprefix("episode/"): name for name in own[:MAX_STATISTICS]}
    if section == "Losses":
        scheduled = [name for name in names if name.startswith("schedule/")]
        return {name.removeprefix("schedule/"): name for name in scheduled[:MAX_STATISTICS]}
    return {}


def _reader(metric: str) -> Callable[[Columns], Column]:
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
    """One run: the mean, minimum and maximum of each bucket. Several: those of the runs, where all have values."""
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


class RunRow(NamedTuple):
    """The row of a run in the table of the page."""

    name: str
    group: int
    state: str
    steps: int
    total_steps: int
    mean_return: float | None
    best_return: float | None
    seconds: float | None
    steps_per_second: float | None
    replay_error: float | None  # the largest
    diagnosis: Mapping[str, Any]
    memory: Sequence[str]  # sentences of the memory report
    audit: Sequence[Mapping[str, str]]  # checks: name, question, status; of failed ones also finding, effect and fix
    links: Mapping[str, str]  # name of a page -> address


class ReportFacts(NamedTuple):
    title: str
    subtitle: str
    groups: Sequence[str]  # the label of each
    several: bool  # whether a group has several runs
    merged: bool  # whether a point covers several epochs
    runs: Sequence[RunRow]
    ceiling: float | None  # the best return without memory, if known and the same for all runs
    goal: float | None
    differing: Mapping[str, Sequence[str]]  # setting -> its value in each run
    settings: Mapping[str, str]  # those of all runs together


def report_page(facts: ReportFacts, charts: Sequence[Chart]) -> str:
    arrays = {"plotly": np.frombuffer(plotly_script().encode(), np.uint8)}
    described = []
    for chart in charts:
        curves = []
        for curve in chart.curves:
            name = f"curve{len(arrays)}"
            arrays[name] = np.stack([curve.steps, curve.mean, curve.low, curve.high]).astype(np.float32)
            curves.append({"group": curve.group, "array": name})
        described.append({**chart._asdict(), "curves": curves})
    content = {**facts._asdict(), "runs": [run._asdict() for run in facts.runs], "charts": described}
    return page("report.html", content, arrays)


def plotly_script() -> str:
    """The library that draws the charts, from its Python package."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise UserError(
            "report: the charts need plotly, which is not installed: pip install 'engram-rl[report]'"
        ) from None
    return str(get_plotlyjs())


def write_pngs(charts: Sequence[Chart], labels: Sequence[str], folder: Path) -> list[Path]:
    """Write `learning.png`, `losses.png` and so on; `labels` names the groups. Returns the paths."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("--png: matplotlib is not installed: pip install 'engram-rl[plot]'") from None
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for section, found in groupby(charts, key=lambda chart: chart.section):
        shown = list(found)
        columns = min(COLUMNS, len(shown))
        rows = -(-len(shown) // columns)
        figure = Figure(figsize=(6.0 if columns == 1 else 3.2 * columns, 2.3 * rows + 0.4), layout="constrained")
        FigureCanvasAgg(figure)
        panels = list(figure.subplots(rows, columns, squeeze=False).flat)
        for panel, chart in zip(panels, shown, strict=False):
            _draw(panel, chart, labels)
        for panel in panels[len(shown) :]:
            panel.set_visible(False)
        if len(labels) > 1:
            handles, names = panels[0].get_legend_handles_labels()
            figure.legend(
                handles, names, loc="outside lower center", ncols=min(4, len(labels)), frameon=False, fontsize=8
            )
        path = folder / f"{re.sub('[^a-z]+', '-', section.lower())}.png"
        figure.savefig(path, dpi=DPI)
        paths.append(path)
    return paths


def _draw(panel: "Axes", chart: Chart, labels: Sequence[str]) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

    for curve in chart.curves:
        colour = COLOURS[curve.group % len(COLOURS)]
        style: Any = {"color": colour, "linestyle": STYLES[curve.group // len(COLOURS) % len(STYLES)], "linewidth": 1.2}
        marker = "o" if len(curve.steps) == 1 else None
        panel.plot(curve.steps, curve.mean, label=labels[curve.group], marker=marker, **style)
        panel.fill_between(curve.steps, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
    if chart.logarithmic:
        panel.set_yscale("log")
    if chart.percent:
        panel.yaxis.set_major_formatter(PercentFormatter(1.0))  # with the decimals that its ticks need
    panel.set_title(chart.title, fontsize=8, loc="left")
    panel.set_xlabel("steps", fontsize=8)
    panel.xaxis.set_major_locator(MaxNLocator(5))
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panel.tick_params(labelsize=7)
    lowest = 0.0 if all((curve.low >= 0).all() for curve in chart.curves) else chart.lowest
    if lowest is not None and not chart.logarithmic:
        panel.set_ylim(bottom=max(lowest, panel.get_ylim()[0]))
    panel.grid(alpha=0.25, linewidth=0.5)
    panel.spines[["top", "right"]].set_visible(False)
