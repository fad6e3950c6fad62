"""The report as a page: one file that needs no other, with pictures of the evidence."""

from collections.abc import Iterator, Sequence
from html import escape

from engram.audit.checks.replay import ALL
from engram.audit.pictures import bars, heatmap, lines
from engram.audit.result import CheckResult, Report
from engram.audit.table import conclusion, measured, title

STYLE = """
:root { --ink: #1d2733; --soft: #64748b; --paper: #ffffff; --panel: #f6f8fa; --line: #dfe5ec; --good: #12805c;
  --bad: #c22f2f; --calm: #d6ebe2; --accent: #3565a8; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e9f0; --soft: #93a1b3; --paper: #12171d; --panel: #1a2129;
  --line: #2c3641; --good: #4cc79a; --bad: #ff7a70; --calm: #1f3a31; --accent: #7fb0f2; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1040px; padding: 32px 20px 64px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 24px; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 40px 0 4px; overflow-wrap: anywhere; }
p { margin: 4px 0; }
.soft { color: var(--soft); }
.number { font-family: ui-monospace, Menlo, monospace; font-size: 13px; }
.verdict { font-weight: 600; margin-bottom: 8px; }
.good { color: var(--good); }
.bad { color: var(--bad); }
.check { border-top: 1px solid var(--line); }
.check > summary { display: grid; grid-template-columns: 52px 168px 220px 1fr; gap: 12px; align-items: baseline;
  padding: 7px 0; cursor: pointer; list-style: none; }
.check > summary::-webkit-details-marker { display: none; }
.mark { font-size: 12px; font-weight: 700; text-transform: uppercase; letter-spacing: .04em; }
.pass .mark { color: var(--good); }
.fail .mark { color: var(--bad); }
.skip .mark { color: var(--soft); }
.name { font-weight: 600; }
.body { padding: 2px 0 18px 64px; }
.fail > .body { border-left: 3px solid var(--bad); padding-left: 61px; }
dl { display: grid; grid-template-columns: 90px 1fr; gap: 4px 14px; margin: 6px 0 10px; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
figure { display: inline-block; vertical-align: top; margin: 8px 14px 8px 0; padding: 10px 12px 8px; max-width: 100%;
  overflow-x: auto; background: var(--panel); border-radius: 8px; }
figcaption { font-size: 13px; line-height: 1.35; color: var(--soft); width: 0; min-width: 100%; }
svg text { font: 10px system-ui, sans-serif; fill: var(--soft); }
svg .within { fill: var(--calm); }
svg .beyond { fill: var(--bad); }
svg .bar { fill: var(--accent); }
svg .gone { fill: none; stroke: var(--bad); }
svg .axis { stroke: var(--line); }
svg .cut { stroke: var(--soft); }
svg .curve { fill: none; stroke: var(--accent); stroke-width: 1.6; }
svg .start { stroke: var(--bad); stroke-dasharray: 3 3; }
@media (max-width: 760px) { .check > summary { grid-template-columns: 48px 1fr; } .body { padding-left: 0; }
  .fail > .body { padding-left: 12px; } }
"""
SEGMENT = ALL.horizon
GLANCE = ("replay", "horizon", "boundary_acting")  # whose pictures stand at the top


def page(reports: Sequence[Report]) -> str:
    """Everything about these targets, as HTML."""
    failed = sum(not report.passed for report in reports)
    told = f"{failed} of {len(reports)} targets fail" if failed else f"All {len(reports)} targets hold"
    heading = "Audit" if len(reports) != 1 else f"Audit of {reports[0].target}"
    summary = "" if len(reports) == 1 else f'<p class="verdict {"bad" if failed else "good"}">{told}</p>'
    body = "".join(_target(report, alone=len(reports) == 1) for report in reports)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(heading)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{escape(heading)}</h1>"
        '<p class="soft">Is the policy\'s memory handled right? Each line is a question; open it for the evidence.</p>'
        f"{summary}{body}</body></html>\n"
    )


def _target(report: Report, alone: bool) -> str:
    told = "good" if report.passed else "bad"
    heading = "" if alone else f"<h2>{escape(report.target)}</h2>"
    glance = "".join("".join(figures(result)) for result in report.results if result.name in GLANCE)
    ordered = sorted(report.results, key=lambda result: result.status != "fail")
    return (
        f'<section>{heading}<p class="soft">{escape(title(report))}, seed {report.seed}</p>'
        f'<p class="verdict {told}">{escape(conclusion(report))}</p>'
        f"{glance}{''.join(_check(result) for result in ordered)}</section>"
    )


def _check(result: CheckResult) -> str:
    is_open = " open" if result.status == "fail" else ""
    rows = [("found", result.said)]
    if result.status == "fail":
        rows += [("so what", result.consequence), ("where", result.where), ("fix", result.fix)]
    rows += [("note", note) for note in result.notes]
    told = "".join(f"<dt>{label}</dt><dd>{escape(text)}</dd>" for label, text in rows if text)
    pictures = "" if result.name in GLANCE else "".join(figures(result))
    return (
        f'<details class="check {result.status}"{is_open}><summary><span class="mark">{result.status}</span>'
        f'<span class="name">{escape(result.name)}</span><span class="number">{escape(measured(result))}</span>'
        f"<span>{escape(result.question)}</span></summary>"
        f'<div class="body"><dl>{told}</dl>{pictures}</div></details>'
    )


def figures(result: CheckResult) -> Iterator[str]:
    """The pictures of a check's evidence."""
    seen, bound = result.evidence, result.bound or 0.0
    if result.name == "replay" and "difference" in seen:
        text = "Replay: how far each step is from how it was played. Green is within the bound; lines part segments."
        yield _figure(heatmap(seen["difference"], bound, "row", "step", every=SEGMENT), text)
    if result.name == "boundary_learning" and "difference" in seen:
        text = "Row i starts an episode at step i: how far what it says is from what it should say."
        yield _figure(heatmap(seen["difference"], bound, "row", "step"), text)
    if "gradient_reach" in seen:
        text = "Gradient reach: from the last step of a segment to each before it, by orders of magnitude."
        yield _figure(bars(seen["gradient_reach"].tolist(), "step", "gradient"), text)
    if "memory_norm" in seen:
        text = "Memory of three rows over time. Dashed: an episode starts, and memory begins anew."
        yield _figure(lines(seen["memory_norm"], seen["starts"], "step", "size"), text)
    for name, when in (("leaks", "acting"), ("learning", "learning")) if "leaks" in seen else ():
        text = f"What another past of one row changes for others when {when}."
        yield _figure(heatmap(seen[name].clone().fill_diagonal_(0), bound, "other past of row", "seen in row"), text)
    if "graph_nodes" in seen:
        text = "Operations in the graph after every third step of acting."
        yield _figure(bars(seen["graph_nodes"][::3].tolist(), "step / 3", "operations"), text)


def _figure(picture: str, caption: str) -> str:
    return f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>"
