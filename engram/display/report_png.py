"""The charts of a report as PNG files for papers, drawn with matplotlib: one file for each section."""

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engram.display.report_charts import Chart
from engram.settings import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#2f66b5", "#c2571b", "#0f7a56", "#8a3fa8", "#a8324a", "#8a6d00", "#1f8796", "#5a6878")
STYLES = ("-", "--", ":", "-.")
DPI = 300
COLUMNS = 3


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
    from matplotlib.ticker import EngFormatter, MaxNLocator

    for curve in chart.curves:
        colour = COLOURS[curve.group % len(COLOURS)]
        style: Any = {"color": colour, "linestyle": STYLES[curve.group // len(COLOURS) % len(STYLES)], "linewidth": 1.2}
        marker = "o" if len(curve.steps) == 1 else None
        panel.plot(curve.steps, curve.mean, label=labels[curve.group], marker=marker, **style)
        panel.fill_between(curve.steps, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
    if chart.logarithmic:
        panel.set_yscale("log")
    if chart.percent:
        panel.yaxis.set_major_formatter("{x:.0%}")
    panel.set_title(chart.title, fontsize=8, loc="left")
    panel.set_xlabel("steps", fontsize=8)
    panel.xaxis.set_major_locator(MaxNLocator(5))
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panel.tick_params(labelsize=7)
    if chart.lowest is not None:
        panel.set_ylim(bottom=max(chart.lowest, panel.get_ylim()[0]))
    panel.grid(alpha=0.25, linewidth=0.5)
    panel.spines[["top", "right"]].set_visible(False)
