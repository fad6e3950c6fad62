"""The rows of a learning benchmark as a table, in a terminal and as cells for the page."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from engram.bench.learning.result import Row

WIDTH = 160  # if the output is not a terminal
COLUMNS = (
    "task",
    "variant",
    "steps",
    "seeds",
    "greedy",
    "sampled",
    "goal",
    "published",
    "reached",
    "steps to it",
    "s to it",
    "s",
)


def cells(row: Row) -> list[str]:
    """One text per column. `reached` counts the runs in which an evaluation reached the goal."""
    published = "" if row.published is None else f"{row.published['score']:g}, {row.published['by']}"
    reached = "" if row.goal is None else f"{sum(run.reached is not None for run in row.runs)} of {len(row.runs)}"
    seconds = sum(run.seconds for run in row.runs) / len(row.runs)
    return [
        row.task,
        row.variant,
        f"{max(run.steps for run in row.runs):,}",
        str(len(row.runs)),
        _over_seeds(row, "greedy"),
        _over_seeds(row, "sampled"),
        "" if row.goal is None else f"{row.goal:g}",
        published,
        reached,
        _number(row.to_goal("steps")),
        _number(row.to_goal("seconds")),
        f"{seconds:,.0f}",
    ]


def show(rows: Sequence[Row], failures: dict[str, str], console: Console | None = None) -> None:
    console = console or Console()
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)
    columns = [name for name in COLUMNS if name != "variant" or any(row.variant for row in rows)]
    table = Table(caption="mean ± standard deviation over seeds; steps and seconds: medians, without evaluations")
    for name in columns:
        text = name in ("task", "variant", "published")
        table.add_column(name, justify="left" if text else "right", overflow="fold")
    for row in rows:
        texts = dict(zip(COLUMNS, cells(row), strict=True))
        style = "" if row.goal is None or row.over_seeds("greedy").mean >= row.goal else "dim"
        table.add_row(*(texts[name] for name in columns), style=style)
    console.print(table)
    for name, reason in failures.items():
        console.print(f"{name}: {reason}", style="red", markup=False)


def _over_seeds(row: Row, which: str) -> str:
    mean, _, _, std = row.over_seeds(which)
    digits = 1 if abs(mean) >= 10 else 3
    return f"{mean:.{digits}f}" if std is None else f"{mean:.{digits}f} ± {std:.{digits}f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"
