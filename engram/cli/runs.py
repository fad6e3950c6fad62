"""`engram runs [NAME …] [runs_dir=runs] [--json]`: list runs with their state, return and what differs."""

import json
from collections.abc import Sequence
from fnmatch import fnmatchcase

from rich.console import Console
from rich.table import Table
from rich.text import Text

from engram.cli.arguments import ArgumentParser
from engram.cli.run_arguments import split_arguments
from engram.display.formatting import count, number
from engram.runs.state import RunState, differing_settings, list_runs
from engram.settings import UserError, printable

DESCRIPTION = """Lists the runs of a directory, the latest first: finished, running, stopped (the same command resumes
them), empty (no checkpoint yet) or unreadable; their steps, their return over the most recent episodes, how long ago
they were written, and the settings that are not those of most of these runs."""

UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def main(argv: Sequence[str]) -> int:
    usage = "engram runs [NAME …] [runs_dir=runs] [--json]"
    parser = ArgumentParser(prog="engram runs", usage=usage, description=DESCRIPTION)
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    options, arguments = parser.parse_settings(argv)
    problem = "no such option; write engram runs [NAME …] [runs_dir=DIRECTORY] [--json]"
    runs_dir, patterns = split_arguments("runs", arguments, problem)
    runs = [run for run in list_runs(runs_dir) if not patterns or any(fnmatchcase(run.name, each) for each in patterns)]
    if not runs and not options.json:
        wanted = f" of {', '.join(patterns)}" if patterns else ""
        raise UserError(f"runs: there are no runs{wanted} in {runs_dir}: train one, or give runs_dir=")
    differing = differing_settings(runs)
    if options.json:
        print(json.dumps([_as_json(run, differing) for run in runs]))
    else:
        Console().print(table(runs, differing))
    return 0


def table(runs: Sequence[RunState], differing: dict[str, dict]) -> Table:
    grid = Table(box=None, pad_edge=False)
    for name in ("run", "state", "steps", "return", "age", "what differs"):
        grid.add_column(name, justify="right" if name in ("steps", "return", "age") else "left", overflow="fold")
    for run in runs:
        steps = count(run.steps) if run.total_steps is None else f"{count(run.steps)} of {count(run.total_steps)}"
        differs = " ".join(f"{name}={_shown(value)}" for name, value in differing.get(run.name, {}).items())
        cells = (run.name, run.state, steps, number(run.mean_return), age(run.age), differs)
        grid.add_row(*(Text(printable(cell)) for cell in cells))
    return grid


def age(seconds: float) -> str:
    """`40 s`, `5 min`, `3 h`, `12 d`."""
    size, unit = next(((size, unit) for size, unit in UNITS if seconds >= size), UNITS[-1])
    return f"{seconds // size:.0f} {unit}"


def _shown(value: object) -> str:
    return json.dumps(value) if isinstance(value, list | dict | bool) or value is None else str(value)


def _as_json(run: RunState, differing: dict[str, dict]) -> dict:
    content = run._asdict() | {"directory": str(run.directory), "differs": differing.get(run.name, {})}
    del content["settings"]
    return content
