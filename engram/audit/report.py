"""Reports for people in a terminal and for programs."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from engram.audit.result import Report
from engram.audit.table import conclusion, render, render_summary, title

PIPED = 120  # columns, where there is no terminal to tell


def show(report: Report, brief: bool = False) -> None:
    """Print one report; in brief, only what fails is told in full."""
    console = _console()
    if brief and report.passed:
        console.print(f"[green]pass[/]  {title(report)}. {conclusion(report)}", highlight=False)
    else:
        console.print(render(report), highlight=False)


def show_summary(reports: Sequence[Report]) -> None:
    console = _console()
    console.print()
    console.print(render_summary(reports), highlight=False)
    failed = sum(not report.passed for report in reports)
    seconds = sum(report.seconds for report in reports)
    told = f"{failed} of {len(reports)} fail" if failed else f"all {len(reports)} hold"
    console.print(f"{told}, {seconds:.0f} s", style="bold red" if failed else "bold green", highlight=False)


def as_json(reports: Sequence[Report]) -> Any:
    """One object for one target, a list for several."""
    return reports[0].to_json() if len(reports) == 1 else [report.to_json() for report in reports]


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=PIPED)
