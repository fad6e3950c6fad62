"""Seconds until a task is solved, Engram and other systems in turn: `make bench ARGS="solve"`.

Every system trains with one thread, alone, with its own settings for the task, up to the same limit of time. Solved is
the goal of the task's recipe: by the mean of the last 20 training episodes, for all systems alike, and by 20 greedy
episodes every 2048 steps for those that can be evaluated meanwhile. The time of evaluations is not counted.
"""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.peers.catalogue import PEERS
from bench.peers.install import python_of
from bench.peers.race import DEFAULT_VENVS, RUNNERS
from engram.bench.learning.result import WIDTH
from engram.bench.learning.suite import commit
from engram.bench.process import ProgramError, start_program, thread_variables
from engram.bench.result import describe_machine, wide_console, write
from engram.bench.train import CARTPOLE, command
from engram.cli.arguments import ArgumentParser, names_from, positive_int
from engram.config.groups import Recipe, read_recipe

EVALUATION_EPISODES = 100  # at the end
RECENT = 20  # episodes of a return
ENGRAM = "engram"
TRAINING, GREEDY = 2, 3  # in a point of a curve
EVALUATED = {ENGRAM, "sb3_zoo"}  # greedily while they train
OUT = Path("bench-results/solve")
RACERS = ("pufferlib", "rl_games")  # with the settings of the race on CartPole, where these are not given:
SMALL_REWARDS: dict[str, Any] = {"reward_scale": 1.0}  # an episode's are at most 1
RACERS_SETTINGS: dict[str, dict[str, Any]] = {  # the discount is rl-zoo's; PufferLib clamps rewards to 1
    "control/CartPole": {},
    "popgym/PositionOnlyCartPoleEasy": SMALL_REWARDS,
    "popgym/RepeatPreviousEasy": SMALL_REWARDS,
    "minigrid/MemoryS7": SMALL_REWARDS,
    "control/Pendulum": {"gamma": 0.9, "ent_coef": 0.0, "reward_scale": 0.06, "normalize": True},
    "control/MountainCarContinuous": {"gamma": 0.9999, "ent_coef": 0.004, "reward_scale": 0.1, "normalize": True},
}
TASKS = {task: [ENGRAM, "sb3_zoo", *RACERS] for task in sorted(RACERS_SETTINGS)}
TITLES = {ENGRAM: "Engram", "sb3_zoo": "sb3-contrib"} | {name: PEERS[name].title for name in RACERS}


@dataclass(frozen=True)
class Solving:
    """One run: when it reached the goal, and its return at the end."""

    task: str
    system: str
    seed: int
    curve: list[list[float | None]]  # seconds, steps, return of training episodes, greedy return
    greedy: float | None
    failed: str | None = None

    def reached(self, goal: float, greedy: bool = False) -> list[float] | None:
        """Seconds and steps to the goal."""
        points = (
            point
            for point in self.curve
            if (value := point[GREEDY if greedy else TRAINING]) is not None and value >= goal
        )
        first = next(points, None)
        return None if first is None else [float(each or 0) for each in first[:2]]

    def return_at(self, seconds: float) -> float | None:
        """The last known return of training episodes at that time."""
        known = [
            value for when, _, value, _ in self.curve if value is not None and when is not None and when <= seconds
        ]
        return known[-1] if known else None


def main(argv: Sequence[str]) -> int:
    parser = ArgumentParser(prog='make bench ARGS="solve …"', description=__doc__)
    parser.add_argument("--tasks", type=names_from(tuple(TASKS)), default=list(TASKS), metavar="NAME,…")
    parser.add_argument("--systems", type=names_from(tuple(TITLES)), default=list(TITLES), metavar="NAME,…")
    parser.add_argument("--seeds", type=positive_int, default=3)
    parser.add_argument("--limit", type=positive_int, default=900, help="seconds of a run (default: 900)")
    parser.add_argument("--venvs", type=Path, default=DEFAULT_VENVS, help="where peers are installed")
    parser.add_argument("--out", type=Path, default=OUT, help=f"default: {OUT}")
    options = parser.parse_args(argv)
    runs = []
    for seed in range(1, options.seeds + 1):
        for task in options.tasks:
            for system in TASKS[task]:
                if system in options.systems:
                    runs.append(_kept(options.out, task, system, seed, options.limit, options.venvs))
    rows = summarize(runs)
    write(
        {"schema": 1, "verb": "solve", "machine": describe_machine(), "commit": commit(), "rows": rows},
        options.out / "solve.json",
    )
    show(rows)
    print(f"wrote {options.out / 'solve.json'}")
    return 0


def summarize(runs: Sequence[Solving]) -> list[dict[str, Any]]:
    """A row per task and system, with seconds relative to Engram's and the return when Engram had reached the goal."""
    rows = []
    for task in dict.fromkeys(run.task for run in runs):
        goal = read_recipe(task).goal
        assert goal is not None
        of_task = [run for run in runs if run.task == task]
        engram = _median([run.reached(goal) for run in of_task if run.system == ENGRAM], 0)
        for system in dict.fromkeys(run.system for run in of_task):
            group = [run for run in of_task if run.system == system]
            done = [run for run in group if run.failed is None]
            reached, greedy = ([run.reached(goal, greedy) for run in done] for greedy in (False, True))
            seconds = _median(reached, 0)
            rows.append(
                {
                    "task": task,
                    "system": TITLES[system],
                    "goal": goal,
                    "runs": len(done),
                    "reached": sum(each is not None for each in reached),
                    "seconds": seconds,
                    "steps": _median(reached, 1),
                    "greedy_reached": sum(each is not None for each in greedy) if system in EVALUATED else None,
                    "greedy_seconds": _median(greedy, 0),
                    "greedy_steps": _median(greedy, 1),
                    "times_engram": seconds / engram if seconds and engram else None,
                    "return_at_engrams_time": _mean([run.return_at(engram) for run in done]) if engram else None,
                    "final_return": _mean([run.return_at(float("inf")) for run in done]),
                    "final_greedy": _mean([run.greedy for run in done]),
                    "total_seconds": _mean([run.curve[-1][0] for run in done if run.curve]),
                    "failed": next((run.failed for run in group if run.failed), None),
                }
            )
    return rows


def show(rows: Sequence[dict[str, Any]]) -> None:
    console = wide_console(WIDTH)
    table = Table(caption="one thread each, in turn; medians of seconds and steps to the goal over all runs")
    columns = [name for name in (rows[0] if rows else {}) if name != "failed"]
    for name in columns:
        table.add_column(name.replace("_", " "), justify="left" if name in ("task", "system") else "right")
    for row in rows:
        table.add_row(*(_shown(row[name]) for name in columns))
    console.print(table)
    for row in rows:
        if row["failed"]:
            console.print(f"{row['task']}, {row['system']}: {row['failed']}", markup=False)


def _kept(out: Path, task: str, system: str, seed: int, limit: int, venvs: Path) -> Solving:
    """The run from its file, or made now and stored. Failures are not stored."""
    path = out / "runs" / f"{task.replace('/', '-')}_{system}_seed{seed}_{limit}s.json"
    if path.exists():
        return Solving(**json.loads(path.read_text(encoding="utf-8")))
    print(f"{task}, {TITLES[system]}, seed {seed}", flush=True)
    try:
        program, environment = _program(task, system, seed, venvs)
        with start_program(program, {**thread_variables(1), **environment}) as process:
            reply = process.request({"train": limit}, timeout=limit + 600.0)
    except ProgramError as error:
        return Solving(task, system, seed, [], None, str(error))
    run = Solving(task, system, seed, reply["curve"], reply.get("greedy"))
    write(vars(run), path)
    return run


def _program(task: str, system: str, seed: int, venvs: Path) -> tuple[list[str], dict[str, str]]:
    """The command of a system, and its environment variables."""
    recipe = read_recipe(task)
    if system == ENGRAM:
        overrides = [
            f"task={task}",
            f"seed={seed}",
            f"trainer.total_timesteps={_budget(recipe)}",
            "trainer.num_workers=0",
        ]
        overrides += ["trainer.evaluate_interval=1", f"trainer.evaluate_episodes={RECENT}"]
        return command([*overrides, "trainer.checkpoint.interval=1000000"], threads=1, recent=RECENT), {}
    if system == "sb3_zoo":
        sizes = {"steps": _budget(recipe), "evaluate": EVALUATION_EPISODES, "recent": RECENT}
        options = {"env": recipe.env["id"], "seed": seed, "threads": 1, **sizes}
        return [str(python_of("sb3_contrib", venvs)), str(RUNNERS / "run_sb3_zoo.py"), json.dumps(options)], {}
    options = {**CARTPOLE, "env": recipe.env["id"], **RACERS_SETTINGS[task], "seed": seed, "threads": 1}
    options |= {"recent": RECENT, "compile": False}  # compiling rl_games takes longer than training
    peer = PEERS[system]
    return [str(python_of(system, venvs)), str(RUNNERS / peer.program), json.dumps(options)], peer.environment


def _budget(recipe: Recipe) -> int:
    return int(recipe.trainer["total_timesteps"])


def _median(reached: Sequence[list[float] | None], which: int) -> float | None:
    """Over all runs; None if half of them or more did not reach the goal."""
    values = [float("inf") if each is None else each[which] for each in reached]
    median = statistics.median_high(values) if values else float("inf")
    return None if median == float("inf") else median


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _shown(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:,.4g}"
