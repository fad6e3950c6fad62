"""The report as a page: one file that needs no other, with pictures of the evidence."""

from collections.abc import Iterator, Sequence
from html import escape

from engram.audit.checks.replay import ALL
from engram.audit.context import EXACT
from engram.audit.pictures import bars, heatmap, lines
from engram.audit.result import CheckResult, Report
from engram.audit.style import STYLE
from engram.audit.table import conclusion, measured, title

SEGMENT = ALL.horizon
GLANCE = ("replay", "horizon", "boundary_acting")  # whose pictures stand at the top


def page(reports: Sequence[Report]) -> str:
    """Everything about these targets, as HTML."""
    failed = sum(not report.passed for report in reports)
    told = f"{failed} of {len(reports)} targets fail" if failed else f"All {len(reports)} targets hold"
    heading = "Audit" if len(reports) != 1 else f"Audit of {reports[0].target}"
    summary = "" if len(reports) == 1 else _badge(told, not failed)
    body = "".join(_target(report, alone=len(reports) == 1) for report in reports)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(heading)}</title><style>{STYLE}</style></head><body>"
        f"<header><h1>{escape(heading)}</h1>"
        '<p class="soft">Is the policy\'s memory handled right? Each line is a question; open it for the evidence.</p>'
        f"{summary}</header>{body}</body></html>\n"
    )


def _badge(text: str, good: bool) -> str:
    return f'<p class="verdict {"good" if good else "bad"}">{escape(text)}</p>'


def _target(report: Report, alone: bool) -> str:
    heading = "" if alone else f"<h2>{escape(report.target)}</h2>"
    glance = "".join("".join(figures(result)) for result in report.results if result.name in GLANCE)
    ordered = sorted(report.results, key=lambda result: result.status != "fail")
    return (
        f"<section>{heading}{_badge(conclusion(report), report.passed)}"
        f'<p class="soft">{escape(title(report))}, seed {report.seed}</p>{_pictures(glance)}'
        f'<div class="checks">{"".join(_check(result) for result in ordered)}</div></section>'
    )


def _check(result: CheckResult) -> str:
    is_open = " open" if result.status == "fail" else ""
    rows = [("found", result.said)]
    if result.status == "fail":
        rows += [("effect", result.consequence), ("where", result.where), ("fix", result.fix)]
    rows += [("note", note) for note in result.notes]
    told = "".join(
        f'<dt>{label}</dt><dd class="{label}">{_lines(text) if label == "found" else escape(text)}</dd>'
        for label, text in rows
        if text
    )
    pictures = "" if result.name in GLANCE else "".join(figures(result))
    number = measured(result).replace("<=", "\u2264").replace(">=", "\u2265")
    return (
        f'<details class="check {result.status}"{is_open}><summary><span class="mark">{result.status}</span>'
        f'<span class="name">{escape(result.name)}</span><span class="number">{escape(number)}</span>'
        f'<span class="question">{escape(result.question)}</span></summary>'
        f'<div class="body"><dl>{told}</dl>{_pictures(pictures)}</div></details>'
    )


def _lines(text: str) -> str:
    """Several things that were found get a line each."""
    parts = text.split("; ")
    if len(parts) == 1:
        return escape(text)
    return f"<ul>{''.join(f'<li>{escape(part)}</li>' for part in parts)}</ul>"


def _pictures(shown: str) -> str:
    return f'<div class="pictures">{shown}</div>' if shown else ""


def figures(result: CheckResult) -> Iterator[str]:
    """The pictures of a check's evidence."""
    seen, bound = result.evidence, result.bound or EXACT
    if result.name == "replay" and "difference" in seen:
        text = "how far each step is from how it was played. Red: beyond the bound. Lines part segments."
        yield _figure(heatmap(seen["difference"], bound, "row", "step", every=SEGMENT), "Replay", text)
    if result.name == "boundary_learning" and "difference" in seen:
        text = "row i starts an episode at step i; how far its outputs are from what they should be."
        yield _figure(heatmap(seen["difference"], bound, "row", "step"), "Starts in a segment", text)
    if "gradient_reach" in seen:
        text = "from the last step of a segment to those before it, by orders of magnitude."
        steps = [int(step) for step in seen["gradient_steps"]]
        yield _figure(bars(seen["gradient_reach"].tolist(), "step", "gradient", steps), "Gradient reach", text)
    if "memory_norm" in seen:
        text = "its size in three rows over time. Dashed: an episode starts, and memory should begin anew."
        yield _figure(lines(seen["memory_norm"], seen["starts"], "step", "size"), "Memory", text)
    for name, when in (("leaks", "acting"), ("learning", "learning")) if "leaks" in seen else ():
        text = "what another past of one row changes for the others."
        picture = heatmap(seen[name].clone().fill_diagonal_(0), bound, "other past of row", "seen in row")
        yield _figure(picture, f"Between rows, {when}", text)
    if "graph_nodes" in seen:
        sizes = seen["graph_nodes"].tolist()
        yield _figure(
            bars(sizes, "step", "operations"), "Graph", "how many operations are in it after each step of acting."
        )


def _figure(picture: str, name: str, caption: str) -> str:
    return f"<figure>{picture}<figcaption><b>{escape(name)}</b>: {escape(caption)}</figcaption></figure>"
