"""A small chart of the returns so far, drawn with block characters, with a line at the memoryless ceiling."""

from itertools import groupby
from typing import NamedTuple

import numpy as np
from rich.text import Text

from engram.display.formatting import score
from engram.display.progress import ReturnCurve
from engram.display.summary import memory_threshold
from engram.env.spec import EnvSpec

BLOCKS = " ▁▂▃▄▅▆▇█"
BELOW, ABOVE, LINE = "cyan", "green", "yellow"


class Scale(NamedTuple):
    """The range of the chart and the marks on it."""

    low: float
    high: float
    ceiling: float | None
    threshold: float | None  # returns above this need memory
    goal: float | None

    @classmethod
    def of(cls, curve: ReturnCurve, env: EnvSpec) -> "Scale":
        """The range of the curve, zero and the known marks; wider if that is a single value."""
        ceiling, goal = env.memoryless_ceiling, env.mean_return_goal
        marks = [mark for mark in (ceiling, goal) if mark is not None]
        known = [*curve.values, *marks, *([0.0] if marks or not curve.values else [])]
        low, high = min(known), max(known)
        return cls(low, high if high > low else low + max(1.0, abs(low)), ceiling, memory_threshold(env), goal)


def chart(curve: ReturnCurve, scale: Scale, width: int, rows: int) -> list[Text]:
    """Lines of text from top to bottom; columns above the memory threshold have a different colour."""
    values = _columns(curve, width)
    heights = _eighths(values, scale, rows)
    styles = [ABOVE if scale.threshold is not None and value > scale.threshold else BELOW for value in values]
    styles += [""] * (width - len(values))
    heights += [0] * (width - len(heights))
    ceiling_row = _row_of(scale.ceiling, scale, rows) if scale.ceiling is not None and rows > 1 else None
    lines = []
    for row in range(rows):
        floor = 8 * (rows - 1 - row)
        cells = [(BLOCKS[min(max(height - floor, 0), 8)], style) for height, style in zip(heights, styles, strict=True)]
        if row == ceiling_row:
            cells = [("╌", LINE) if block == " " else (block, style) for block, style in cells]
        lines.append(_text(cells))
    return lines


def labels(scale: Scale, rows: int) -> list[Text]:
    """The labels beside the lines of the chart."""
    marks = {rows - 1: Text(score(scale.low), "dim"), 0: Text(score(scale.high), "dim")}
    if scale.goal is not None:
        marks[_row_of(scale.goal, scale, rows)] = Text(f"{score(scale.goal)} at best", "dim")
    if scale.ceiling is not None:
        marks[_row_of(scale.ceiling, scale, rows)] = Text(f"{score(scale.ceiling)} without memory", LINE)
    return [marks.get(row, Text()) for row in range(rows)]


def _columns(curve: ReturnCurve, width: int) -> list[float]:
    """The curve interpolated at each column; a single point is a single column."""
    if len(curve.steps) < 2:
        return list(curve.values)
    steps = np.linspace(curve.steps[0], curve.steps[-1], width)
    return np.interp(steps, curve.steps, curve.values).tolist()


def _eighths(values: list[float], scale: Scale, rows: int) -> list[int]:
    """Heights in eighths of a line, at least one, so that the lowest value is visible."""
    unit = 8 * rows / (scale.high - scale.low)
    return [max(1, round((value - scale.low) * unit)) for value in values]


def _row_of(value: float, scale: Scale, rows: int) -> int:
    fraction = (value - scale.low) / (scale.high - scale.low)
    return rows - 1 - min(int(fraction * rows), rows - 1)


def _text(cells: list[tuple[str, str]]) -> Text:
    groups = groupby(cells, key=lambda cell: cell[1])
    return Text.assemble(*(("".join(block for block, _ in group), style) for style, group in groups), no_wrap=True)
