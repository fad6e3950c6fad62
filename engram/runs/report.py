"""Collects the content of a report about runs: metrics, settings, groups of runs that differ by seed, diagnosis."""

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from engram.config.load import describe_run
from engram.config.run import RunSettings
from engram.config.run_directory import MAY_CHANGE, flatten
from engram.diagnosis import Diagnosis, Setup
from engram.diagnosis.diagnose import diagnose
from engram.display.report import Chart, ReportFacts, RunRow, charts, report_page
from engram.runs.state import compared_settings, read_run
from engram.settings import UserError
from engram.stored.files import MEGABYTE, UnreadableError, read_json
from engram.stored.metrics import BUCKETS, Columns, is_number, read_columns
from engram.stored.plan import StoredPlan, read_plan

MAX_RUNS = 64
MAX_POINTS = 4096  # of one chart, divided among its curves, so that the page stays small
MIN_POINTS_PER_RUN = 64
PAGES = ("replay", "memory", "audit")  # linked if they are in a run's directory
AUDIT_FIELDS = ("name", "question", "status", "finding", "effect", "where", "fix")


class ReportRun(NamedTuple):
    """A run, read without building its policy or environment."""

    name: str
    directory: Path
    settings: RunSettings
    plan: StoredPlan | None
    columns: Columns
    diagnosis: Diagnosis


class RunsReport(NamedTuple):
    groups: list[list[ReportRun]]  # runs that differ by their seed only
    charts: list[Chart]

    @property
    def runs(self) -> list[ReportRun]:
        return [run for group in self.groups for run in group]


def read_report(directories: Sequence[Path]) -> RunsReport:
    if len(directories) > MAX_RUNS:
        raise UserError(f"report: {len(directories)} runs are too many for one page: name at most {MAX_RUNS}")
    points = max(MIN_POINTS_PER_RUN, min(BUCKETS, MAX_POINTS // len(directories)))
    groups: dict[str, list[ReportRun]] = {}
    for directory in directories:
        run = read_report_run(directory, points)
        groups.setdefault(_group_key(run.settings), []).append(run)
    grouped = list(groups.values())
    return RunsReport(grouped, charts([[run.columns for run in group] for group in grouped]))


def read_report_run(directory: Path, points: int = BUCKETS) -> ReportRun:
    settings, plan = describe_run(directory), read_plan(directory)
    try:
        columns = read_columns(directory, points)
    except UnreadableError as error:
        raise UserError(str(error)) from None
    setup = Setup.of(settings.trainer, settings.env, settings.policy, plan)
    return ReportRun(directory.name, directory, settings, plan, columns, diagnose(columns, setup))


def write_report(report: RunsReport, out: Path) -> int:
    """Write the page; returns its size in bytes."""
    content = report_page(_facts(report, out), report.charts).encode()
    out.write_bytes(content)
    return len(content)


def _facts(report: RunsReport, out: Path) -> ReportFacts:
    runs = report.runs
    group_of = {run.name: index for index, group in enumerate(report.groups) for run in group}
    flat = [compared_settings(run.settings) for run in runs]
    names = dict.fromkeys(name for settings in flat for name in settings)
    texts = {name: [_text(settings.get(name)) for settings in flat] for name in names}
    differing = {name: values for name, values in texts.items() if len(set(values)) > 1}
    ceilings = {
        (run.plan.env.memoryless_ceiling, run.plan.env.mean_return_goal) if run.plan else (None, None) for run in runs
    }
    ceiling, goal = ceilings.pop() if len(ceilings) == 1 else (None, None)
    tasks = dict.fromkeys(f"{_policy(run)} on {_env(run)}" for run in runs)
    return ReportFacts(
        title=runs[0].name if len(runs) == 1 else f"{len(runs)} runs",
        subtitle=", ".join(tasks),
        groups=[label(group) for group in report.groups],
        several=any(len(group) > 1 for group in report.groups),
        merged=any(len(group) == 1 and group[0].columns.merged for group in report.groups),
        runs=[_row(run, group_of[run.name], out) for run in runs],
        ceiling=ceiling,
        goal=goal,
        differing=differing,
        settings={name: values[0] for name, values in texts.items() if name not in differing},
    )


def _row(run: ReportRun, group: int, out: Path) -> RunRow:
    columns, state = run.columns, read_run(run.directory)
    returns, errors, speed = columns["return"], columns["memory/replay_error"], columns["time/steps_per_second"]
    return RunRow(
        name=run.name,
        group=group,
        state=state.state,
        steps=int(columns.last.get("steps", 0)),
        total_steps=run.settings.trainer.total_timesteps,
        mean_return=float(returns.mean[-1]) if len(returns.steps) else None,
        best_return=float(returns.high.max()) if len(returns.steps) else None,
        seconds=_number(columns.last.get("time/seconds")),
        steps_per_second=float(speed.mean.mean()) if len(speed.steps) else None,
        replay_error=float(errors.high.max()) if len(errors.steps) else None,
        diagnosis=run.diagnosis.to_json(),
        memory=_memory_verdict(run.directory),
        audit=_audit_checks(run.directory),
        links={name: _link(page, out) for name in PAGES if (page := run.directory / f"{name}.html").is_file()},
    )


def _memory_verdict(directory: Path) -> list[str]:
    """The sentences of the last `engram memory` of this run; none if there was none."""
    try:
        verdict = read_json(directory / "memory.json", 16 * MEGABYTE, inside=directory)["verdict"]
        return [str(sentence)[:1000] for sentence in list(verdict)[:20]]
    except (UnreadableError, LookupError, TypeError):
        return []


def _audit_checks(directory: Path) -> list[dict[str, str]]:
    """The checks of the last `engram audit` of this run; none if there was no audit."""
    try:
        checks = read_json(directory / "audit.json", 16 * MEGABYTE, inside=directory)["checks"]
        return [{name: str(check.get(name) or "")[:1000] for name in AUDIT_FIELDS} for check in list(checks)[:100]]
    except (UnreadableError, LookupError, TypeError, AttributeError):
        return []


def _link(page: Path, out: Path) -> str:
    """A relative link, so that the directory can be moved; an absolute one if the report is elsewhere."""
    same = page.resolve().parent == out.resolve().parent
    return page.name if same else page.resolve().as_uri()


def _group_key(settings: RunSettings) -> str:
    """Equal for runs that differ only in their seed, or in settings that do not affect what is learned."""
    flat = flatten(settings.model_dump(mode="json"))
    ignored = ("seed", *(name for name in MAY_CHANGE if name != "trainer.total_timesteps"))
    return json.dumps({n: v for n, v in flat.items() if not any(f"{n}.".startswith(f"{each}.") for each in ignored)})


def label(group: Sequence[ReportRun]) -> str:
    """The name of a run, or what the names of several have in common."""
    if len(group) == 1:
        return group[0].name
    common = os.path.commonprefix([run.name for run in group])  # noqa: RUF071 (by characters is what we want)
    common = common.rstrip("-_.") or group[0].name
    return f"{common.removesuffix('seed').rstrip('-_.') or common} ({len(group)} seeds)"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _policy(run: ReportRun) -> str:
    return run.settings.policy.name.rpartition(":")[2]


def _env(run: ReportRun) -> str:
    return run.plan.env.name if run.plan else run.settings.env.kind


def _number(value: Any) -> float | None:
    return float(value) if is_number(value) and math.isfinite(value) else None
