"""The report page: learning curves, losses, health, throughput and settings of one or several runs."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from engram.display.page import page
from engram.display.report_charts import Chart
from engram.settings import UserError


class RunRow(NamedTuple):
    """What the page shows of a run."""

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
