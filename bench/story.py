"""Memory bugs, trained side by side with the same seeds: `make bench ARGS="story"`.

What each bug does to learning, on tasks where it shows and where it does not; when it fails; and what the audit and the
live replay check say about it. The runs go on although the replay check would stop them.
"""

import contextlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.faults import FAULTS
from engram.bench.learning.result import WIDTH, collect
from engram.bench.learning.suite import Job, is_finished, plan, run_jobs
from engram.bench.result import describe_machine, wide_console, write
from engram.cli.bench import learn_options, learning_parser
from engram.cli.main import main as engram
from engram.stored.metrics import read_metrics

TASKS = ["recall/delay10", "recall/delay40", "control/CartPole", "tmaze/corridor5", "popgym/RepeatPreviousEasy"]
OUT = Path("bench-results/story")
BOUND = 0.001  # default of trainer.replay_error_bound: a larger error stops a run
UNSTOPPED = ("trainer.replay_error_bound=1e9", "trainer.gradient_bound=null")


@dataclass(frozen=True)
class Outcome:
    """What became of one bug on one task."""

    task: str
    fault: str
    seeds: int
    greedy: str
    sampled: str
    solved: str  # runs that reached the goal
    failed: str  # with which error a run ended, and after how many steps
    replay_error: float | None  # the largest
    stopped_after: int | None  # steps after which the replay check would have stopped the first seed


def main(argv: Sequence[str]) -> int:
    parser = learning_parser('make bench ARGS="story …"', __doc__ or "")
    parser.set_defaults(tasks=TASKS, out=OUT)
    parser.add_argument("--no-audit", action="store_true", help="do not audit the policies")
    arguments, settings = parser.parse_settings(argv)
    options = learn_options(arguments, [])
    jobs = plan(options, [(*_overrides(fault), *settings) for fault in FAULTS])
    if arguments.dry_run:
        print("\n".join(command for job in jobs for command in job.commands))
        return 0
    failures = {} if arguments.report else run_jobs(jobs, arguments.jobs, lambda line: print(line, flush=True))
    outcomes = outcomes_of(jobs, failures)
    audits = {} if arguments.no_audit else {fault: failing_checks(fault) for fault in FAULTS}
    content = {"schema": 1, "verb": "story", "machine": describe_machine(), "audits": audits}
    write({**content, "outcomes": [vars(outcome) for outcome in outcomes]}, options.out / "story.json")
    show(outcomes, audits)
    print(f"wrote {options.out / 'story.json'}")
    return 0


def outcomes_of(jobs: Sequence[Job], failures: dict[str, str]) -> list[Outcome]:
    """One outcome per task and bug, also of bugs whose runs all failed."""
    rows = {(row.task, row.variant): row for row in collect(jobs)}
    groups: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        groups.setdefault((job.task, job.variant), []).append(job)
    return [_outcome(group, rows.get(key), failures) for key, group in groups.items()]


def failing_checks(fault: str) -> list[str]:
    """The checks of `engram audit` that a policy fails."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        engram(["audit", f"bench.faults:{FAULTS[fault].__name__}", "env=recall", "py_agent.hidden_size=32", "--json"])
    return [check["name"] for check in json.loads(text.getvalue())["checks"] if check["status"] == "fail"]


def show(outcomes: Sequence[Outcome], audits: dict[str, list[str]]) -> None:
    console = wide_console(WIDTH)
    table = Table(caption=f"replay check: steps after which an error above {BOUND} would have stopped the run")
    for name in ("task", "memory", "seeds", "greedy", "sampled", "solved", "replay error", "replay check", "failed"):
        table.add_column(name, justify="left" if name in ("task", "memory", "failed") else "right", overflow="fold")
    for each in outcomes:
        error = "" if each.replay_error is None else f"{each.replay_error:.2g}"
        stopped = "silent" if each.stopped_after is None else f"{each.stopped_after:,}"
        cells = (each.greedy, each.sampled, each.solved, error, stopped, each.failed)
        table.add_row(each.task, each.fault, str(each.seeds), *cells)
    console.print(table)
    for fault, checks in audits.items():
        console.print(f"audit, {fault}: {', '.join(checks) or 'all checks hold'}", markup=False)


def _overrides(fault: str) -> tuple[str, ...]:
    return (f"py_agent=bench.faults:{FAULTS[fault].__name__}", *UNSTOPPED)


def _outcome(jobs: Sequence[Job], row: Any, failures: dict[str, str]) -> Outcome:
    fault = next(fault for fault in FAULTS if jobs[0].overrides[0] == _overrides(fault)[0])
    errors = [
        f"{failures[job.name].partition('. ')[0]} (after {_steps(job):,} steps)" for job in jobs if job.name in failures
    ]
    records = [record for job in jobs for record in read_metrics(job.directory)]
    first = next(
        (record["steps"] for record in read_metrics(jobs[0].directory) if record["memory/replay_error"] > BOUND), None
    )
    solved = "" if row is None or row.goal is None else str(sum(run.reached is not None for run in row.runs))
    return Outcome(
        jobs[0].task,
        fault,
        sum(is_finished(job) for job in jobs),
        "" if row is None else _mean(row, "greedy"),
        "" if row is None else _mean(row, "sampled"),
        solved,
        errors[0] if errors else "",
        max((record["memory/replay_error"] for record in records), default=None),
        first,
    )


def _mean(row: Any, which: str) -> str:
    mean, _, _, std = row.over_seeds(which)
    return f"{mean:.3g}" + ("" if std is None else f" ± {std:.2g}")


def _steps(job: Job) -> int:
    records = read_metrics(job.directory)
    return records[-1]["steps"] if records else 0
