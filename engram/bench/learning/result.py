"""The results of a learning benchmark, one row per task and variant over its seeds, and their table."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from engram.bench.learning.suite import Job, is_finished, read_scores
from engram.bench.result import describe_machine, wide_console
from engram.stored.metrics import read_metrics
from engram.training.statistics import Estimate, estimate

WIDTH = 160  # if the output is not a terminal
COLUMNS = (
    "task",
    "variant",
    "steps",
    "seeds",
    "greedy",
    "sampled",
    "goal",
    "published",
    "reached",
    "steps to goal",
    "s to goal",
    "s in all",
)


class Point(NamedTuple):
    """An evaluation during a run. Seconds are those of training, without evaluations."""

    steps: int
    seconds: float
    greedy: float
    sampled: float


@dataclass(frozen=True)
class FinishedRun:
    """A finished run. Greedy and sampled are its final evaluations."""

    seed: int
    steps: int
    seconds: float
    greedy: float
    sampled: float
    reached: Point | None  # the first evaluation whose greedy or sampled return reaches the goal
    replay_error: float  # the largest of all epochs
    curve: list[Point]
    commands: list[str]
    commit: str | None


@dataclass(frozen=True)
class Row:
    """The runs of one task and variant."""

    task: str
    title: str
    variant: str
    goal: float | None
    published: dict[str, Any] | None
    runs: list[FinishedRun]
    command: str

    def over_seeds(self, which: str) -> Estimate:
        """The mean of the final returns, `greedy` or `sampled`, with its interval and spread."""
        found = estimate(np.array([getattr(run, which) for run in self.runs]))
        assert found is not None
        return found

    def to_goal(self, which: str) -> float | None:
        """The median of the steps or seconds until the goal; None if half of the runs or more did not reach it."""
        values = [float("inf") if run.reached is None else float(getattr(run.reached, which)) for run in self.runs]
        median = statistics.median_high(values)
        return None if median == float("inf") else median

    def to_json(self) -> dict[str, Any]:
        content = asdict(self)
        return content | {which: self.over_seeds(which)._asdict() for which in ("greedy", "sampled")}


def collect(jobs: Sequence[Job]) -> list[Row]:
    """A row for each task and variant that has a finished run, in the order of the tasks."""
    groups: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        groups.setdefault((job.task, job.variant), []).append(job)
    return [_row(done) for group in groups.values() if (done := [job for job in group if is_finished(job)])]


def result_to_json(rows: Sequence[Row], failures: dict[str, str]) -> dict[str, Any]:
    date = datetime.now().astimezone().isoformat(timespec="seconds")
    content = {"schema": 1, "verb": "learn", "date": date, "machine": describe_machine()}
    return {**content, "rows": [row.to_json() for row in rows], "failures": failures}


def cells(row: Row) -> list[str]:
    """One text per column. `reached` counts the runs in which an evaluation reached the goal."""
    published = "" if row.published is None else f"{row.published['score']:g}, {row.published['by']}"
    reached = "" if row.goal is None else f"{sum(run.reached is not None for run in row.runs)} of {len(row.runs)}"
    seconds = sum(run.seconds for run in row.runs) / len(row.runs)
    return [
        row.task,
        row.variant,
        f"{max(run.steps for run in row.runs):,}",
        str(len(row.runs)),
        _over_seeds(row, "greedy"),
        _over_seeds(row, "sampled"),
        "" if row.goal is None else f"{row.goal:g}",
        published,
        reached,
        _number(row.to_goal("steps")),
        _number(row.to_goal("seconds")),
        f"{seconds:,.0f}",
    ]


def show(rows: Sequence[Row], failures: dict[str, str]) -> None:
    console = wide_console(WIDTH)
    columns = [name for name in COLUMNS if name != "variant" or any(row.variant for row in rows)]
    table = Table(caption="mean ± standard deviation over seeds; to goal: medians; seconds: without evaluations")
    for name in columns:
        text = name in ("task", "variant", "published")
        table.add_column(name, justify="left" if text else "right", overflow="fold")
    for row in rows:
        texts = dict(zip(COLUMNS, cells(row), strict=True))
        style = "" if row.goal is None or row.over_seeds("greedy").mean >= row.goal else "dim"
        table.add_row(*(texts[name] for name in columns), style=style)
    console.print(table)
    for name, reason in failures.items():
        console.print(f"{name}: {reason}", style="red", markup=False)


def _over_seeds(row: Row, which: str) -> str:
    mean, _, _, std = row.over_seeds(which)
    digits = 1 if abs(mean) >= 10 else 3
    return f"{mean:.{digits}f}" if std is None else f"{mean:.{digits}f} ± {std:.{digits}f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _row(jobs: Sequence[Job]) -> Row:
    first, recipe = jobs[0], jobs[0].recipe
    published = recipe.published.model_dump() if recipe.published else None
    jobs = sorted(jobs, key=lambda job: job.seed)
    seeds = ["--seeds", str(len(jobs))] + (["--first-seed", str(jobs[0].seed)] if jobs[0].seed > 1 else [])
    command = " ".join(["engram bench learn --tasks", first.task, *seeds, *first.overrides])
    runs = [_read_run(job, recipe.goal) for job in jobs]
    return Row(first.task, recipe.title, first.variant, recipe.goal, published, runs, command)


def _read_run(job: Job, goal: float | None) -> FinishedRun:
    records = read_metrics(job.directory)
    evaluation_seconds = accumulate(record.get("time/evaluation_seconds", 0.0) for record in records)
    curve = [
        Point(
            record["steps"],
            round(record["time/seconds"] - spent, 2),
            record["evaluate/greedy_return"],
            record["evaluate/return"],
        )
        for record, spent in zip(records, evaluation_seconds, strict=True)
        if "evaluate/return" in record
    ]
    spent = sum(record.get("time/evaluation_seconds", 0.0) for record in records)
    scores, seconds = read_scores(job), records[-1]["time/seconds"] - spent
    greedy, sampled = (scores[which]["mean"] for which in ("greedy", "sampled"))
    end = Point(records[-1]["steps"], round(seconds, 2), greedy, sampled)
    return FinishedRun(
        job.seed,
        end.steps,
        end.seconds,
        greedy,
        sampled,
        None if goal is None else next((p for p in [*curve, end] if max(p.greedy, p.sampled) >= goal), None),
        max(record["memory/replay_error"] for record in records),
        curve,
        scores["commands"],
        scores["commit"],
    )
