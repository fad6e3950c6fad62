"""The page of a learning benchmark: a table, and for each task its curves with intervals over seeds."""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from engram.bench.learning.result import COLUMNS, Row, cells
from engram.training.statistics import estimate

TEMPLATE = Path(__file__).with_name("page.html")
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 360, 190, 46, 8, 22
COLOURS = ("#3667ad", "#d1651f", "#0f7a56", "#8e44ad", "#b0323f", "#6b7280", "#a07b00", "#0e7c86")

Scale = Callable[[float], float]  # a value as a coordinate of the picture


def write_page(content: dict[str, Any], rows: Sequence[Row], path: Path) -> None:
    machine = content["machine"]
    text = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        machine=escape(f"{machine['cpu']}, {machine['cores']} cores, one thread per run; torch {machine['torch']}"),
        date=escape(content["date"]),
        head="".join(f"<th>{escape(name)}</th>" for name in COLUMNS),
        rows="\n".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells(row))}</tr>" for row in rows),
        tasks="\n".join(_task(task, [row for row in rows if row.task == task]) for task in _tasks(rows)),
        failures="\n".join(f"<p>{escape(name)}: {escape(why)}</p>" for name, why in content["failures"].items()),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _tasks(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row.task for row in rows))


def _task(task: str, rows: Sequence[Row]) -> str:
    published = rows[0].published
    source = ""
    if published:
        after = f" after {published['steps']:,} steps" if published["steps"] else ""
        link = f'<a href="{escape(published["source"])}">source</a>'
        source = f"<p>Published: {published['score']:g} by {escape(published['by'])}{after} ({link}).</p>"
    named = [
        f'<span style="color:{COLOURS[number % len(COLOURS)]}">{escape(row.variant or "defaults")}</span>'
        for number, row in enumerate(rows)
    ]
    commands = "\n".join([row.command for row in rows] + ["", "# the first seed alone:", *rows[0].runs[0].commands])
    return (
        f"<section><h2>{escape(task)}</h2><p>{escape(rows[0].title)} {', '.join(named)}</p>{source}"
        f'<div class="pictures">{_picture(rows, "greedy")}{_picture(rows, "sampled")}</div>'
        f"<details><summary>commands</summary><pre>{escape(commands)}</pre></details></section>"
    )


def _picture(rows: Sequence[Row], which: str) -> str:
    """The mean over seeds with its 95% interval, one colour per variant, and the goal as a dashed line."""
    curves = [_curve(row, which) for row in rows]
    values = [value for curve in curves for _, *bounds in curve for value in bounds]
    values += [row.goal for row in rows if row.goal is not None]
    low, high = min(values), max(values)
    span, last = (high - low) or 1.0, max(curve[-1][0] for curve in curves) or 1
    right, floor = WIDTH - 8, HEIGHT - BOTTOM

    def x(steps: float) -> float:
        return LEFT + (right - LEFT) * steps / last

    def y(value: float) -> float:
        return floor - (floor - TOP) * (value - low) / span

    parts = [f'<path class="axis" d="M{LEFT} {TOP}V{floor}H{right}"/>']
    parts += [
        f'<text x="{LEFT - 4}" y="{y(value) + 3:.1f}" text-anchor="end">{value:.3g}</text>' for value in (low, high)
    ]
    parts.append(f'<text x="{right}" y="{HEIGHT - 6}" text-anchor="end">{last:,.0f} steps</text>')
    if rows[0].goal is not None:
        parts.append(f'<path class="goal" d="M{LEFT} {y(rows[0].goal):.1f}H{right}"/>')
    for number, curve in enumerate(curves):
        parts.append(_line(curve, x, y, COLOURS[number % len(COLOURS)]))
    drawing = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>'
    return f"<figure>{drawing}<figcaption>{which} return, mean over seeds and 95% interval</figcaption></figure>"


def _line(curve: Sequence[tuple[float, float, float, float]], x: Scale, y: Scale, colour: str) -> str:
    mean = " ".join(f"{x(steps):.1f},{y(value):.1f}" for steps, value, _, _ in curve)
    upper = [f"{x(steps):.1f},{y(high):.1f}" for steps, _, _, high in curve]
    lower = [f"{x(steps):.1f},{y(low):.1f}" for steps, _, low, _ in reversed(curve)]
    band = f'<polygon points="{" ".join([*upper, *lower])}" fill="{colour}" opacity="0.18"/>'
    return f'{band}<polyline points="{mean}" fill="none" stroke="{colour}" stroke-width="1.6"/>'


def _curve(row: Row, which: str) -> list[tuple[float, float, float, float]]:
    """Steps, mean, and the bounds of the interval, cut to the range of the seeds; ends with the final evaluation."""
    by_steps: dict[int, list[float]] = {}
    for run in row.runs:
        for point in run.curve:
            by_steps.setdefault(point.steps, []).append(getattr(point, which))
        by_steps.setdefault(run.steps, []).append(getattr(run, which))
    curve = []
    for steps, values in sorted(by_steps.items()):
        found = estimate(np.array(values))
        assert found is not None
        low, high = (found.mean if bound is None else bound for bound in (found.low, found.high))
        curve.append((float(steps), found.mean, max(low, min(values)), min(high, max(values))))
    return curve
