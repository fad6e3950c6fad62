"""The report as a self-contained HTML page, with figures of the evidence."""

import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from string import Template

from torch import Tensor

from engram.audit.difference import EXACT
from engram.audit.result import AuditReport, CheckResult
from engram.audit.text_report import conclusion, measured, title

TEMPLATE = Path(__file__).with_name("page.html")
AT_TOP = ("replay", "horizon")  # checks whose figures stand above the table
CELL, LEFT, TOP, BOTTOM = 12, 46, 8, 34  # pixels
BAR_HEIGHT = 90


def page(reports: Sequence[AuditReport]) -> str:
    """The reports of these targets as HTML."""
    failed = sum(not report.passed for report in reports)
    text = f"{failed} of {len(reports)} targets fail" if failed else f"All {len(reports)} targets hold"
    alone = len(reports) == 1
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        heading=escape(f"Audit of {reports[0].target}" if alone else "Audit"),
        summary="" if alone else _badge(text, not failed),
        body="".join(_target(report, alone) for report in reports),
    )


def _badge(text: str, good: bool) -> str:
    return f'<p class="verdict {"good" if good else "bad"}">{escape(text)}</p>'


def _target(report: AuditReport, alone: bool) -> str:
    heading = "" if alone else f"<h2>{escape(report.target)}</h2>"
    at_top = "".join("".join(figures(result)) for result in report.results if result.name in AT_TOP)
    roots = [name for cause in report.causes for name in (cause.root.name, *(r.name for r in cause.consequences))]
    ordered = sorted(
        report.results, key=lambda result: roots.index(result.name) if result.name in roots else len(roots)
    )
    causes = "".join(f"<p>{escape(f'Probable root cause: {cause.text}')}</p>" for cause in report.causes)
    return (
        f"<section>{heading}{_badge(conclusion(report), report.passed)}"
        f'<p class="soft">{escape(title(report))}, seed {report.seed}</p>{causes}{_figure_grid(at_top)}'
        f'<div class="checks">{"".join(_check(result) for result in ordered)}</div></section>'
    )


def _check(result: CheckResult) -> str:
    is_open = " open" if result.status == "fail" else ""
    rows = [("found", result.finding)]
    if result.status == "fail":
        rows += [("effect", result.effect), ("where", result.where), ("fix", result.fix)]
    rows += [("note", note) for note in result.notes]
    details = "".join(
        f'<dt>{label}</dt><dd class="{label}">{_list(text) if label == "found" else escape(text)}</dd>'
        for label, text in rows
        if text
    )
    below = "" if result.name in AT_TOP else "".join(figures(result))
    number = measured(result).replace("<=", "\u2264").replace(">=", "\u2265")
    return (
        f'<details class="check {result.status}"{is_open}><summary><span class="mark">{result.status}</span>'
        f'<span class="name">{escape(result.name)}</span><span class="number">{escape(number)}</span>'
        f'<span class="question">{escape(result.question)}</span></summary>'
        f'<div class="body"><dl>{details}</dl>{_figure_grid(below)}</div></details>'
    )


def _list(text: str) -> str:
    """Several findings as a list."""
    parts = text.split("; ")
    if len(parts) == 1:
        return escape(text)
    return f"<ul>{''.join(f'<li>{escape(part)}</li>' for part in parts)}</ul>"


def _figure_grid(shown: str) -> str:
    return f'<div class="pictures">{shown}</div>' if shown else ""


def figures(result: CheckResult) -> Iterator[str]:
    """The figures of a check's evidence."""
    evidence, bound = result.evidence, result.bound or EXACT
    if result.name == "replay" and "difference" in evidence:
        text = "difference between acting and learning at each step. Red: above the bound."
        yield _figure(heatmap(evidence["difference"], bound, "row", "step"), "Replay", text)
    if result.name == "boundary_learning" and "difference" in evidence:
        text = "row i starts an episode at step i; difference from the expected outputs."
        yield _figure(heatmap(evidence["difference"], bound, "row", "step"), "Starts in a segment", text)
    if "gradient_reach" in evidence:
        text = "gradient of the last step of a segment at earlier steps, on a logarithmic scale."
        steps = [int(step) for step in evidence["gradient_steps"]]
        yield _figure(bars(evidence["gradient_reach"].tolist(), "gradient", steps), "Gradient reach", text)
    if "leaks" in evidence:
        text = "how much another past of one row changes the outputs of the others."
        for name, when in (("leaks", "acting"), ("learning", "learning")):
            picture = heatmap(evidence[name].clone().fill_diagonal_(0), bound, "other past of row", "seen in row")
            yield _figure(picture, f"Between rows, {when}", text)
    if "graph_nodes" in evidence:
        picture = bars(evidence["graph_nodes"].tolist(), "operations")
        yield _figure(picture, "Graph", "operations in the graph after each step of acting.")


def _figure(picture: str, name: str, caption: str) -> str:
    return f"<figure>{picture}<figcaption><b>{escape(name)}</b>: {escape(caption)}</figcaption></figure>"


def heatmap(values: Tensor, bound: float, y_label: str, x_label: str) -> str:
    """[rows, columns]: green where a value is within the bound, red on a logarithmic scale where it is not."""
    rows, columns = values.shape
    cells = [
        f'<rect x="{LEFT + x * CELL}" y="{TOP + y * CELL}" width="{CELL - 1}" height="{CELL - 1}" '
        f"{_shade(value, bound)}><title>{y_label} {y}, {x_label} {x}: {value:.2g}</title></rect>"
        for y, line in enumerate(values.tolist())
        for x, value in enumerate(line)
    ]
    labels = [_text(LEFT + (x + 0.5) * CELL, TOP + rows * CELL + 12, str(x)) for x in _ticks(columns)]
    labels += [_text(LEFT - 14, TOP + (y + 0.8) * CELL, str(y)) for y in _ticks(rows)]
    return _svg(LEFT + columns * CELL + 8, TOP + rows * CELL + BOTTOM, x_label, y_label, [*cells, *labels])


def bars(values: Sequence[float], y_label: str, labels: Sequence[int] | None = None) -> str:
    """One bar for each step on a logarithmic scale; a missing value is marked."""
    shown = [value for value in values if value > 0 and math.isfinite(value)]
    top, floor = max(shown, default=1.0), min(shown, default=1.0)
    decades = max(math.log10(top / floor), 1.0)
    parts = []
    for number, (label, value) in enumerate(zip(labels or range(len(values)), values, strict=True)):
        x, positive = LEFT + number * CELL, value > 0
        size = 12 + (BAR_HEIGHT - 12) * math.log10(min(value, top) / floor) / decades if positive else 6.0
        parts.append(
            f'<rect class="{"bar" if positive else "gone"}" x="{x}" y="{TOP + BAR_HEIGHT - size:.1f}" '
            f'width="{CELL - 3}" height="{size:.1f}"><title>step {label}: {value:.2g}</title></rect>'
        )
        if number in _ticks(len(values)):
            parts.append(_text(x + CELL / 2, TOP + BAR_HEIGHT + 13, str(label)))
    parts.append(_text(LEFT - 14, TOP + 10, f"{top:.0e}"))
    return _svg(LEFT + len(values) * CELL + 8, TOP + BAR_HEIGHT + BOTTOM, "step", y_label, parts)


def _shade(value: float, bound: float) -> str:
    if value <= bound:
        return 'class="within"'
    decades = 6.0 if not math.isfinite(value) or bound <= 0 else math.log10(value / bound)
    return f'class="beyond" fill-opacity="{min(1.0, 0.35 + 0.65 * decades / 4):.2f}"'


def _ticks(count: int) -> range:
    if count <= 12:
        return range(count)
    return range(0, count, 4 if count <= 24 else 8)


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{escape(text)}</text>'


def _svg(width: int, height: int, x_label: str, y_label: str, parts: list[str]) -> str:
    """A drawing with the names of its axes."""
    axis = f'<text transform="translate(10,{(height - BOTTOM) / 2 + TOP:.0f}) rotate(-90)" text-anchor="middle">'
    names = [_text((LEFT + width) / 2, height - 5, x_label), f"{axis}{escape(y_label)}</text>"]
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>{"".join([*parts, *names])}</svg>'
