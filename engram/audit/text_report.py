"""Reports as text: in the terminal with details of each failure, and as JSON, SARIF (code scanning) and JUnit XML."""

import io
import re
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from engram import __version__
from engram.audit.result import AuditReport, CheckResult
from engram.audit.root_cause import RootCause

PIPE_WIDTH = 120  # columns, when the output is no terminal
LOCATION = re.compile(r"\(([^()]+\.py):(\d+)\)")
MARKS = {"pass": Text("pass", "green"), "fail": Text("FAIL", "bold red"), "skip": Text("skip", "dim")}


def render(report: AuditReport) -> RenderableType:
    """The whole report of one target."""
    parts: list[RenderableType] = [Text(title(report), "bold")]
    if report.assumed_loop:
        parts.append(Text(f"Assumed training loop: {report.assumed_loop}.", "dim"))
    parts.append(_lines(report.results))
    for number, cause in enumerate(report.causes):
        parts.append(_cause(cause, number))
        parts += [_failure(result) for result in (cause.root, *cause.consequences)]
    parts.append(Text(conclusion(report), "bold green" if report.passed else "bold red"))
    return Group(*parts)


def render_summary(reports: Sequence[AuditReport]) -> RenderableType:
    """One line for each target."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("target", "checks", "seconds", ""):
        table.add_column(column, justify="right" if column == "seconds" else "left")
    for report in reports:
        failed = ", ".join(result.name for result in report.failures)
        mark = MARKS["pass"] if report.passed else Text(f"FAIL: {failed}", "bold red")
        table.add_row(report.target, str(len(report.results)), f"{report.seconds:.1f}", mark)
    return table


def as_text(report: AuditReport, width: int = 110) -> str:
    """The report without colours, for exceptions and files."""
    stream = io.StringIO()
    Console(file=stream, width=width, no_color=True, highlight=False, force_jupyter=False).print(render(report))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def title(report: AuditReport) -> str:
    played = "" if report.adapter == "td" else f", played as '{report.adapter}'"
    return f"{report.target}: {report.policy} on {report.env}, {report.parameters:,} parameters{played}"


def conclusion(report: AuditReport) -> str:
    skipped = sum(result.status == "skip" for result in report.results)
    applied = len(report.results) - skipped
    failed = len(report.failures)
    skips = f" ({skipped} {'does' if skipped == 1 else 'do'} not apply)" if skipped else ""
    if report.passed:
        text = "The one check holds" if applied == 1 else f"All {applied} checks hold"
    else:
        text = f"{failed} of {applied} check{'s' * (applied > 1)} {'fails' if failed == 1 else 'fail'}"
    return f"{text}{skips}. {report.seconds:.1f} s"


def measured(result: CheckResult) -> str:
    """`3.1e-07 <= 1e-05`, or where it fails `0.2 > 1e-05`."""
    if result.measured is None:
        return ""
    if result.bound is None:
        return f"{result.measured:.3g}"
    broken = (result.measured < result.bound) if result.at_least else not result.measured <= result.bound
    signs = ("<", ">=") if result.at_least else (">", "<=")
    return f"{result.measured:.3g} {signs[0] if broken else signs[1]} {result.bound:.3g}"


def _lines(results: Sequence[CheckResult]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    table.add_column("")
    table.add_column("check", no_wrap=True)
    table.add_column("measured", no_wrap=True)
    table.add_column("")
    for result in results:
        what = result.finding if result.status != "fail" else result.question
        table.add_row(MARKS[result.status], result.name, measured(result), Text(what, "dim" if result.passed else ""))
        for note in result.notes:
            table.add_row("", "", "", Text(f"note: {note}", "yellow"))
    return table


def _cause(cause: RootCause, number: int) -> RenderableType:
    which = "Probable root cause" if number == 0 else "Another fault"
    return Text(f"\n{which}: {cause.text}", "bold red")


def _failure(result: CheckResult) -> RenderableType:
    rows = Table.grid(padding=(0, 2, 0, 0))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column()
    for label, text in (
        ("found", result.finding),
        ("effect", result.effect),
        ("where", result.where),
        ("fix", result.fix),
    ):
        rows.add_row(label, Text(text))
    heading = Text(f"{result.name}: {result.question}", "bold red")
    return Group(Text(""), heading, Padding(rows, (0, 0, 0, 2)))


def show(report: AuditReport, brief: bool = False) -> None:
    """Print one report; brief: a single line if it passes."""
    console = _console()
    if brief and report.passed:
        console.print(f"[green]pass[/]  {title(report)}. {conclusion(report)}", highlight=False)
    else:
        console.print(render(report), highlight=False)


def show_summary(reports: Sequence[AuditReport]) -> None:
    console = _console()
    console.print()
    console.print(render_summary(reports), highlight=False)
    failed = sum(not report.passed for report in reports)
    seconds = sum(report.seconds for report in reports)
    text = f"{failed} of {len(reports)} fail" if failed else f"all {len(reports)} hold"
    console.print(f"{text}, {seconds:.0f} s", style="bold red" if failed else "bold green", highlight=False)


def as_json(reports: Sequence[AuditReport]) -> Any:
    """One object for one target, a list for several."""
    return reports[0].to_json() if len(reports) == 1 else [report.to_json() for report in reports]


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)


def sarif(reports: Sequence[AuditReport]) -> dict[str, Any]:
    """SARIF 2.1.0: each failed check is a result at the line to look at."""
    rules = {result.name: result for report in reports for result in report.results}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "engram audit",
                        "version": __version__,
                        "rules": [
                            {"id": rule.name, "shortDescription": {"text": rule.question}} for rule in rules.values()
                        ],
                    }
                },
                "results": [_sarif_result(report, result) for report in reports for result in report.failures],
            }
        ],
    }


def _sarif_result(report: AuditReport, result: CheckResult) -> dict[str, Any]:
    roots = {cause.root.name: f"{cause.sentence}. " if cause.sentence else "" for cause in report.causes}
    found: dict[str, Any] = {
        "ruleId": result.name,
        "level": "error" if result.name in roots else "warning",  # a consequence of another fault
        "message": {
            "text": f"{report.target}: {roots.get(result.name, '')}{result.finding}. {result.effect} Fix: {result.fix}"
        },
    }
    if match := LOCATION.search(result.where):
        location = {"artifactLocation": {"uri": match[1]}, "region": {"startLine": int(match[2])}}
        found["locations"] = [{"physicalLocation": location}]
    return found


def junit(reports: Sequence[AuditReport]) -> str:
    """JUnit XML: a suite for each target, a case for each check."""
    suites = ElementTree.Element("testsuites")
    for report in reports:
        counts = {
            "tests": str(len(report.results)),
            "failures": str(len(report.failures)),
            "skipped": str(sum(result.status == "skip" for result in report.results)),
        }
        suite = ElementTree.SubElement(suites, "testsuite", {"name": f"engram audit {report.target}", **counts})
        for result in report.results:
            case = ElementTree.SubElement(
                suite, "testcase", classname=report.target, name=result.name, time=f"{result.seconds:.3f}"
            )
            if result.status == "fail":
                failure = ElementTree.SubElement(case, "failure", message=result.finding)
                failure.text = f"{result.effect}\nwhere: {result.where}\nfix: {result.fix}"
            elif result.status == "skip":
                ElementTree.SubElement(case, "skipped", message=result.finding)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True)
