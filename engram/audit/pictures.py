"""Small pictures of evidence, as SVG that stands on its own; colours come from the page's style."""

import math
from collections.abc import Sequence
from html import escape

from torch import Tensor

CELL, SMALL_CELL = 16, 11  # the small one where there are many
WIDE = 272  # of many bars together
LEFT, TOP, BOTTOM = 46, 8, 34


def heatmap(values: Tensor, bound: float, down: str, across: str, every: int = 0) -> str:
    """[rows, columns]: calm where a value is within the bound, red by orders of magnitude where it is not.

    With `every`, a line after each so many columns.
    """
    rows, columns = values.shape
    cell = CELL if columns <= 12 else SMALL_CELL
    width, height = LEFT + columns * cell + 8, TOP + rows * cell + BOTTOM
    cells = [
        f'<rect x="{LEFT + x * cell}" y="{TOP + y * cell}" width="{cell - 1}" height="{cell - 1}" '
        f"{_shade(float(values[y, x]), bound)}><title>{down} {y}, {across} {x}: "
        f"{float(values[y, x]):.2g}</title></rect>"
        for y in range(rows)
        for x in range(columns)
    ]
    across_labels = [_text(LEFT + (x + 0.5) * cell, TOP + rows * cell + 12, str(x)) for x in _ticks(columns)]
    down_labels = [_text(LEFT - 6, TOP + (y + 0.7) * cell, str(y), "end") for y in range(rows)]
    names = [_text(LEFT + columns * cell / 2, height - 6, across), _upright(TOP + rows * cell / 2, down)]
    floor = TOP + rows * cell
    places = [LEFT + x * cell - 0.5 for x in range(every, columns, every)] if every else []
    cuts = [f'<line class="cut" x1="{x}" x2="{x}" y1="{TOP - 4}" y2="{floor}"/>' for x in places]
    return _svg(width, height, [*cells, *cuts, *across_labels, *down_labels, *names])


def bars(values: Sequence[float], across: str, up: str, labels: Sequence[int] | None = None) -> str:
    """One bar each, by orders of magnitude from the smallest to the largest; a missing one is marked."""
    shown = [value for value in values if value > 0 and math.isfinite(value)]
    top, floor = max(shown, default=1.0), min(shown, default=1.0)
    decades = max(math.log10(top / floor), 1.0)
    names = list(labels or range(len(values)))
    pitch, tall = max(6.0, min(22.0, WIDE / max(len(values), 1))), 90
    width, height = LEFT + len(values) * pitch + 8, TOP + tall + BOTTOM
    parts = [f'<line class="axis" x1="{LEFT}" x2="{width - 8:.1f}" y1="{TOP + tall}" y2="{TOP + tall}"/>']
    for number, (name, value) in enumerate(zip(names, values, strict=True)):
        x, there = LEFT + number * pitch, value > 0
        size = 12 + (tall - 12) * (math.log10(min(value, top) / floor) / decades) if there else 6.0
        title = f"<title>{across} {name}: {value:.2g}</title>"
        parts.append(
            f'<rect class="{"bar" if there else "gone"}" x="{x:.1f}" y="{TOP + tall - size:.1f}" '
            f'width="{pitch * 0.78:.1f}" height="{size:.1f}">{title}</rect>'
        )
        if number in _ticks(len(values)):
            parts.append(_text(x + pitch * 0.39, TOP + tall + 13, str(name)))
    parts += [_text(LEFT + len(values) * pitch / 2, height - 4, across), _upright(TOP + tall / 2, up)]
    parts += [_text(LEFT - 6, TOP + 10, f"{top:.1g}", "end")]
    if shown:
        parts.append(_text(LEFT - 6, TOP + tall, f"{floor:.1g}", "end"))
    return _svg(width, height, parts)


def lines(values: Tensor, starts: Tensor, across: str, up: str) -> str:
    """[rows, steps], each row in a lane of its own, with a mark where an episode starts."""
    rows, steps = values.shape
    lane, step = 40, 11
    width, height = LEFT + steps * step + 8, TOP + rows * lane + BOTTOM
    top = float(values.max()) or 1.0
    parts = []
    for row in range(rows):
        floor = TOP + (row + 1) * lane - 6
        parts.append(f'<line class="axis" x1="{LEFT}" x2="{LEFT + steps * step}" y1="{floor}" y2="{floor}"/>')
        parts.append(_text(LEFT - 6, floor - 12, f"row {row}", "end"))
        for t in range(steps):
            if bool(starts[row, t]):
                x = max(LEFT + (t - 0.5) * step, LEFT)
                title = "<title>an episode starts</title>"
                parts.append(
                    f'<line class="start" x1="{x}" x2="{x}" y1="{floor - lane + 8}" y2="{floor}">{title}</line>'
                )
        points = " ".join(
            f"{LEFT + t * step:.1f},{floor - (lane - 12) * float(values[row, t]) / top:.1f}" for t in range(steps)
        )
        parts.append(f'<polyline class="curve" points="{points}"/>')
    labels = [_text(LEFT + t * step, TOP + rows * lane + 10, str(t)) for t in _ticks(steps)]
    names = [_text(LEFT + steps * step / 2, height - 4, across), _upright(TOP + rows * lane / 2, up, 8)]
    return _svg(width, height, [*parts, *labels, *names])


def _shade(value: float, bound: float) -> str:
    if value <= bound:
        return 'class="within"'
    beyond = 6.0 if not math.isfinite(value) or bound <= 0 else math.log10(value / bound)
    return f'class="beyond" fill-opacity="{min(1.0, 0.35 + 0.65 * beyond / 4):.2f}"'


def _ticks(count: int) -> range:
    return range(0, count, 1 if count <= 12 else 4 if count <= 24 else 8)


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _upright(y: float, text: str, x: float = 10) -> str:
    return f'<text transform="translate({x},{y:.1f}) rotate(-90)" text-anchor="middle">{escape(text)}</text>'


def _svg(width: float, height: float, parts: list[str]) -> str:
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>{"".join(parts)}</svg>'
