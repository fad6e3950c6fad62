"""A small chart of the returns so far: columns of blocks, with a line at what is possible without memory."""

from itertools import groupby
from typing import NamedTuple

import numpy as np
from rich.text import Text

from engram.display.ceiling import beyond_luck
from engram.display.figures import score
from engram.display.story import Curve
from engram.env.spec import EnvSpec

BLOCKS = " ▁▂▃▄▅▆▇█"
BELOW, ABOVE, LINE = "cyan", "green", "yellow"


class Scale(NamedTuple):
    """What the chart spans, and the marks on it."""

    low: float
    high: float
    ceiling: float | None
    clear: float | None  # above the ceiling beyond doubt
    goal: float | None

    @classmethod
    def of(cls, curve: Curve, env: EnvSpec) -> "Scale":
        """All of the curve, and from zero to the marks where they are known; some room if that is a single value."""
        ceiling, goal = env.memoryless_ceiling, env.mean_return_goal
        marks = [mark for mark in (ceiling, goal) if mark is not None]
        known = [*curve.values, *marks, *([0.0] if marks or not curve.values else [])]
        low, high = min(known), max(known)
        return cls(low, high if high > low else low + max(1.0, abs(low)), ceiling, beyond_luck(env), goal)


def chart(curve: Curve, scale: Scale, width: int, rows: int) -> list[Text]:
    """Lines of text, the top one first; what is clearly above the ceiling has another colour."""
    values = _columns(curve, width)
    heights = _eighths(values, scale, rows)
    styles = [ABOVE if scale.clear is not None and value > scale.clear else BELOW for value in values]
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
    """What stands beside the lines of the chart."""
    marks = {rows - 1: Text(score(scale.low), "dim"), 0: Text(score(scale.high), "dim")}
    if scale.goal is not None:
        marks[_row_of(scale.goal, scale, rows)] = Text(f"{score(scale.goal)} at best", "dim")
    if scale.ceiling is not None:
        marks[_row_of(scale.ceiling, scale, rows)] = Text(f"{score(scale.ceiling)} without memory", LINE)
    return [marks.get(row, Text()) for row in range(rows)]


def _columns(curve: Curve, width: int) -> list[float]:
    """The curve read at as many places as there are columns; a single point is a single column."""
    if len(curve.steps) < 2:
        return list(curve.values)
    places = np.linspace(curve.steps[0], curve.steps[-1], width)
    return np.interp(places, curve.steps, curve.values).tolist()


def _eighths(values: list[float], scale: Scale, rows: int) -> list[int]:
    """Heights in eighths of a line, at least one: also the lowest value is seen."""
    unit = 8 * rows / (scale.high - scale.low)
    return [max(1, round((value - scale.low) * unit)) for value in values]


def _row_of(value: float, scale: Scale, rows: int) -> int:
    share = (value - scale.low) / (scale.high - scale.low)
    return rows - 1 - min(int(share * rows), rows - 1)


def _text(cells: list[tuple[str, str]]) -> Text:
    runs = groupby(cells, key=lambda cell: cell[1])
    return Text.assemble(*(("".join(block for block, _ in run), style) for style, run in runs), no_wrap=True)
