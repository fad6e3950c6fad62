"""Plots races as bars, and runs as learning curves, with matplotlib: `make bench ARGS="plot RESULT… SVG"`."""

import json
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engram.settings import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"environment": "#7fb069", "inference": "#4c86a8", "learning": "#e09f3e", "other": "#b0b4ba"}
STEPS = 100_000  # a bar shows the time of this many steps
COLUMNS = 3  # of learning curves


def main(argv: Sequence[str]) -> int:
    if len(argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    *sources, target = map(Path, argv)
    results = [json.loads(source.read_text(encoding="utf-8")) for source in sources]
    if "runs" in results[0]:
        plot_learning([run for result in results for run in result["runs"]], target)
    else:
        plot_races({**results[0], "races": [race for result in results for race in result["races"]]}, target)
    print(f"wrote {target}")
    return 0


def plot_races(result: dict[str, Any], path: Path) -> None:
    """One panel per race, with a bar for the best entry of each name, split by phase, the fastest first."""
    races = [race for race in result["races"] if any(entry["best"] for entry in race["entries"])]
    sizes = [len(_fastest_last(race)) for race in races]
    figure = _new_figure((9, 0.34 * sum(sizes) + 0.9 * len(races) + 0.4))
    panels = figure.subplots(len(races), squeeze=False, height_ratios=[size + 1 for size in sizes])[:, 0]
    for panel, race in zip(panels, races, strict=True):
        _draw_race(panel, race)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=len(COLOURS), frameon=False)
    machine = result["machine"]
    place = f"{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}, {result['date'][:10]}"
    figure.text(0.99, 0.01, place, ha="right", color="#888888", size=8)
    _save(figure, path)


def plot_learning(runs: Sequence[dict[str, Any]], path: Path) -> None:
    """One panel per task, with a line per run."""
    tasks = [(task, list(group)) for task, group in groupby(runs, key=lambda run: run["task"])]
    rows = -(-len(tasks) // COLUMNS)
    figure = _new_figure((9, 2 * rows))
    panels = list(figure.subplots(rows, COLUMNS, squeeze=False).flat)
    for panel, (task, group) in zip(panels, tasks, strict=False):
        panel.set_title(task.replace("py_agent=", ""), size=8, loc="left")
        for run in group:
            panel.plot(*zip(*run["curve"], strict=True), linewidth=1)
        panel.set_ylim(bottom=min(0.0, panel.get_ylim()[0]))
        panel.tick_params(labelsize=7)
        panel.set_xlabel(f"{max(run['steps'] for run in group):,} steps", size=7, loc="right")
        panel.set_xticks([])
    for panel in panels[len(tasks) :]:
        panel.set_axis_off()
    _save(figure, path)


def _fastest_last(race: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted((entry for entry in race["entries"] if entry["best"]), key=lambda entry: entry["rate"])


def _draw_race(panel: "Axes", race: dict[str, Any]) -> None:
    entries = _fastest_last(race)
    names = [entry["name"] for entry in entries]
    left = [0.0] * len(entries)
    for phase, colour in COLOURS.items():
        widths = [_seconds_by_phase(entry)[phase] for entry in entries]
        panel.barh(names, widths, left=left, color=colour, label=phase)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for row, entry in enumerate(entries):
        text = f" {STEPS / entry['rate']:.1f} s, {entry['rate']:,.0f} steps/s"
        panel.text(left[row], row, text, va="center", size=8)
    panel.set_title(f"{race['name']}\nseconds for {STEPS:,} steps", size=9, loc="left")
    panel.set_xlim(right=1.3 * max(left))
    panel.set_xticks([])
    panel.spines[["top", "right", "bottom"]].set_visible(False)


def _seconds_by_phase(entry: dict[str, Any]) -> dict[str, float]:
    """The time of `STEPS` steps; `other` is the time that no phase accounts for."""
    total = STEPS / entry["rate"]
    seconds = {phase: entry["phases"].get(phase, 0.0) * total for phase in COLOURS}
    seconds["other"] += max(0.0, total - sum(seconds.values()))
    return seconds


def _new_figure(size: tuple[float, float]) -> "Figure":
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("plots need matplotlib: .venv/bin/python -m pip install -e '.[plot]'") from None
    return Figure(size, layout="constrained")


def _save(figure: "Figure", path: Path) -> None:
    import matplotlib

    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "engram", "font.family": "sans-serif"}):
        figure.savefig(path, format="svg", metadata={"Date": None})
