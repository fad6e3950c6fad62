"""The runs of a learning benchmark, tasks x variants x seeds, trained in separate processes, several at once."""

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from threading import Lock
from typing import Any

from engram.bench.process import ProgramError, thread_variables
from engram.bench.result import write
from engram.config.groups import Recipe, choices, read_recipe
from engram.config.load import SETTINGS_FILE, describe_run, load
from engram.config.run_directory import differences
from engram.cores import available_cores
from engram.env.settings import agents_of
from engram.settings import SettingsError, UserError
from engram.training.sizes import resolve_sizes

SUITES = {"quick": 150_000, "standard": 1_000_000, "full": 10**12}  # the largest budget of a task, in agent-steps
LONG_RUN = 2_000_000  # agent-steps: longer runs get fewer seeds
SEEDS, SEEDS_OF_LONG_RUNS = 5, 3
ONE_THREAD = ("device=cpu", "trainer.num_workers=0")  # a run uses one core, so that several can be timed at once


@dataclass(frozen=True)
class LearnOptions:
    """Options of `engram bench learn`."""

    suite: str = "standard"
    tasks: list[str] = field(default_factory=list)  # names or files; empty: those of the suite
    seeds: int | None = None  # None: 5, and 3 for long runs
    first_seed: int = 1  # another one for seeds that settings were not tuned on
    overrides: list[str] = field(default_factory=list)  # settings of all runs, NAME=VALUE
    vary: list[str] = field(default_factory=list)  # NAME=A,B,…: one variant for each value
    out: Path = Path("bench-results/learn")
    episodes: int = 100  # of the final evaluations, greedy and sampled
    points: int = 20  # evaluations during a run
    point_episodes: int = 20


@dataclass(frozen=True)
class Job:
    """One run of the benchmark: training, then evaluation. Runs are stored under `out`."""

    task: str
    variant: str
    seed: int
    overrides: tuple[str, ...]  # the settings that define it
    evaluate_interval: int  # epochs
    out: Path
    options: LearnOptions

    @property
    def name(self) -> str:
        return _slug("_".join([self.task, *self.overrides, f"seed{self.seed}"]))

    @property
    def title(self) -> str:
        return " ".join([self.task, *self.overrides, f"seed {self.seed}"])

    @property
    def train_arguments(self) -> list[str]:
        options = self.options
        extra = [f"trainer.evaluate_interval={self.evaluate_interval}"]
        extra += [f"trainer.evaluate_episodes={options.point_episodes}", "trainer.checkpoint.keep=1"]
        return [f"task={self.task}", *self.overrides, f"seed={self.seed}", *ONE_THREAD, *extra, *self.location]

    @property
    def location(self) -> list[str]:
        return [f"run={self.name}", f"runs_dir={self.out / 'runs'}"]

    def eval_arguments(self, greedy: bool) -> list[str]:
        return [*self.location, f"episodes={self.options.episodes}", f"greedy={str(greedy).lower()}", "device=cpu"]

    @property
    def commands(self) -> list[str]:
        """The commands that repeat this run."""
        verbs = [
            ["train", *self.train_arguments],
            *(["eval", *self.eval_arguments(greedy)] for greedy in (True, False)),
        ]
        return [f"OMP_NUM_THREADS=1 engram {shlex.join(arguments)}" for arguments in verbs]

    @property
    def directory(self) -> Path:
        return self.out / "runs" / self.name

    @property
    def score_file(self) -> Path:
        return self.out / "scores" / f"{self.name}.json"

    @property
    def log_file(self) -> Path:
        return self.out / "logs" / f"{self.name}.txt"

    @property
    def recipe(self) -> Recipe:
        return read_recipe(self.task)


def plan(options: LearnOptions, variants: Sequence[tuple[str, ...]] | None = None) -> list[Job]:
    """All runs, ordered so that every task has its first seed before any has its second.

    Raises `UserError` if a task or setting does not exist, or if a stored run has different settings.
    """
    jobs = []
    for task in options.tasks or tasks_of(options.suite):
        recipe_steps = int(read_recipe(task).trainer.get("total_timesteps", 0))
        seeds = options.seeds or (SEEDS_OF_LONG_RUNS if recipe_steps > LONG_RUN else SEEDS)
        for overrides in variants or variants_of(options):
            interval = _evaluate_interval([f"task={task}", *overrides, *ONE_THREAD], options.points)
            for seed in range(options.first_seed, options.first_seed + seeds):
                job = Job(task, " ".join(overrides), seed, overrides, interval, options.out, options)
                _check_stored(job)
                jobs.append(job)
    return sorted(jobs, key=lambda job: job.seed)


def tasks_of(suite: str) -> list[str]:
    """The shipped recipes whose budget belongs to a suite, the shortest first."""
    steps = {task: int(read_recipe(task).trainer["total_timesteps"]) for task in choices("task")}
    return sorted((task for task in steps if steps[task] <= SUITES[suite]), key=lambda task: steps[task])


def variants_of(options: LearnOptions) -> list[tuple[str, ...]]:
    """The settings of each variant: those of all runs, with every combination of the varied ones."""
    variants: list[tuple[str, ...]] = [tuple(options.overrides)]
    for varied in options.vary:
        name, equals, values = varied.partition("=")
        if not equals or not values:
            raise UserError(f"--vary {varied}: write NAME=A,B,…")
        variants = [(*overrides, f"{name}={value}") for overrides in variants for value in values.split(",")]
    return variants


class Processes:
    """The processes that are running, so that they can be stopped together."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._lock, self._stopped = Lock(), False

    def run(self, arguments: Sequence[str], log: Path, capture: bool = False) -> str:
        """Run `engram …` with one thread; raises `ProgramError` with the last line of its output."""
        command = [sys.executable, "-m", "engram", *arguments]
        variables = {**os.environ, **thread_variables(1)}
        with log.open("a", encoding="utf-8") as file, self._lock:
            if self._stopped:
                raise ProgramError("stopped")
            stdout = subprocess.PIPE if capture else file
            process = subprocess.Popen(
                command, stdout=stdout, stderr=file, text=True, env=variables, start_new_session=True
            )
            self._running.add(process)
        output, _ = process.communicate()
        with self._lock:
            self._running.discard(process)
        if process.returncode:
            raise ProgramError(_last_line(log) or f"exit code {process.returncode}")
        return output or ""

    def stop(self) -> None:
        """Ask running processes to stop; training since their last checkpoint is lost."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.terminate()


def run_jobs(jobs: Sequence[Job], at_once: int, progress: Callable[[str], None]) -> dict[str, str]:
    """Run the jobs that are not finished; returns the errors of those that failed, by the name of the job."""
    waiting = [job for job in jobs if not is_finished(job)]
    if len(waiting) < len(jobs):
        progress(f"{len(jobs) - len(waiting)} of {len(jobs)} runs are finished already")
    failures: dict[str, str] = {}
    processes = Processes()
    with ThreadPoolExecutor(at_once) as executor:
        futures = {executor.submit(_run, job, processes): job for job in waiting}
        try:
            for number, future in enumerate(as_completed(futures), 1):
                job = futures[future]
                try:
                    outcome = future.result()
                except ProgramError as error:
                    outcome = failures[job.name] = str(error)
                progress(f"{number} of {len(waiting)}: {job.title}: {outcome}")
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            processes.stop()
            raise
    return failures


def is_finished(job: Job) -> bool:
    """Whether the job was trained and evaluated with as many episodes."""
    return read_scores(job).get("episodes") == job.options.episodes


def read_scores(job: Job) -> dict[str, Any]:
    """The final evaluations of a finished job, otherwise an empty dictionary."""
    if not job.score_file.exists():
        return {}
    return json.loads(job.score_file.read_text(encoding="utf-8"))


def commit() -> str | None:
    """The commit of the clone that Engram runs from, with + if files were changed; None outside of a clone."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() or None


def _run(job: Job, processes: Processes) -> str:
    """Train and evaluate; a run that was stopped earlier resumes from its checkpoint."""
    job.log_file.parent.mkdir(parents=True, exist_ok=True)
    processes.run(["train", *job.train_arguments], job.log_file)
    played = {
        name: json.loads(processes.run(["eval", *job.eval_arguments(greedy), "--json"], job.log_file, capture=True))
        for name, greedy in (("greedy", True), ("sampled", False))
    }
    scores = {name: evaluation["return"] for name, evaluation in played.items()}
    temporary = job.score_file.with_suffix(".part")
    write({"episodes": job.options.episodes, "commit": commit(), "commands": job.commands, **scores}, temporary)
    temporary.replace(job.score_file)
    return f"greedy {scores['greedy']['mean']:.4g}, sampled {scores['sampled']['mean']:.4g}"


def _evaluate_interval(overrides: Iterable[str], points: int) -> int:
    """Epochs between evaluations, so that there are about `points` of them."""
    settings = load([*overrides])
    sizes = resolve_sizes(settings.trainer, agents_of(settings.env) or 1, "cpu", available_cores())
    return max(1, ceil(settings.trainer.total_timesteps / sizes.batch_size) // points)


def _check_stored(job: Job) -> None:
    """Raise if a run of this name has different settings, for example older defaults."""
    if not (job.directory / SETTINGS_FILE).exists():
        return
    overrides = [word for word in job.train_arguments if word not in job.location]
    now = load(overrides).model_copy(update={"run": job.name})
    if changed := differences(describe_run(job.directory), now):
        raise SettingsError(
            [*changed, f"{job.directory} was run with different settings: give a different --out, or remove it"]
        )


def _slug(text: str) -> str:
    """A directory name; long ones end in a hash of the whole."""
    slug = re.sub(r"[^A-Za-z0-9._+-]+", "-", text.removesuffix("/")).strip(".-_+")
    return slug if len(slug) <= 90 else f"{slug[:80]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _last_line(path: Path) -> str:
    lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""
