"""The runs of a learning benchmark: tasks x variants x seeds. Does not import torch."""

import hashlib
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

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
    words: list[str] = field(default_factory=list)  # settings of all runs, NAME=VALUE
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
    words: tuple[str, ...]  # the settings that define it
    evaluate_interval: int  # epochs
    out: Path
    options: LearnOptions

    @property
    def name(self) -> str:
        return _slug("_".join([self.task, *self.words, f"seed{self.seed}"]))

    @property
    def title(self) -> str:
        return " ".join([self.task, *self.words, f"seed {self.seed}"])

    @property
    def train_words(self) -> list[str]:
        options = self.options
        extra = [f"trainer.evaluate_interval={self.evaluate_interval}"]
        extra += [f"trainer.evaluate_episodes={options.point_episodes}", "trainer.checkpoint.keep=1"]
        return [f"task={self.task}", *self.words, f"seed={self.seed}", *ONE_THREAD, *extra, *self.location]

    @property
    def location(self) -> list[str]:
        return [f"run={self.name}", f"runs_dir={self.out / 'runs'}"]

    def eval_words(self, greedy: bool) -> list[str]:
        return [*self.location, f"episodes={self.options.episodes}", f"greedy={str(greedy).lower()}", "device=cpu"]

    @property
    def commands(self) -> list[str]:
        """The commands that repeat this run."""
        verbs = [["train", *self.train_words], *(["eval", *self.eval_words(greedy)] for greedy in (True, False))]
        return [f"OMP_NUM_THREADS=1 engram {shlex.join(words)}" for words in verbs]

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
        for words in variants or variants_of(options):
            interval = _evaluate_interval([f"task={task}", *words, *ONE_THREAD], options.points)
            for seed in range(options.first_seed, options.first_seed + seeds):
                job = Job(task, " ".join(words), seed, words, interval, options.out, options)
                _check_stored(job)
                jobs.append(job)
    return sorted(jobs, key=lambda job: job.seed)


def tasks_of(suite: str) -> list[str]:
    """The shipped recipes whose budget belongs to a suite, the shortest first."""
    steps = {task: int(read_recipe(task).trainer["total_timesteps"]) for task in choices("task")}
    return sorted((task for task in steps if steps[task] <= SUITES[suite]), key=lambda task: steps[task])


def variants_of(options: LearnOptions) -> list[tuple[str, ...]]:
    """The settings of each variant: those of all runs, with every combination of the varied ones."""
    variants: list[tuple[str, ...]] = [tuple(options.words)]
    for varied in options.vary:
        name, equals, values = varied.partition("=")
        if not equals or not values:
            raise UserError(f"--vary {varied}: write NAME=A,B,…")
        variants = [(*words, f"{name}={value}") for words in variants for value in values.split(",")]
    return variants


def _evaluate_interval(words: Iterable[str], points: int) -> int:
    """Epochs between evaluations, so that there are about `points` of them."""
    settings = load([*words])
    sizes = resolve_sizes(settings.trainer, agents_of(settings.env) or 1, "cpu", available_cores())
    return max(1, ceil(settings.trainer.total_timesteps / sizes.batch_size) // points)


def _check_stored(job: Job) -> None:
    """Raise if a run of this name has different settings, for example older defaults."""
    if not (job.directory / SETTINGS_FILE).exists():
        return
    words = [word for word in job.train_words if word not in job.location]
    now = load(words).model_copy(update={"run": job.name})
    if changed := differences(describe_run(job.directory), now):
        raise SettingsError(
            [*changed, f"{job.directory} was run with different settings: give a different --out, or remove it"]
        )


def _slug(text: str) -> str:
    """A directory name; long ones end in a hash of the whole."""
    slug = re.sub(r"[^A-Za-z0-9._+-]+", "-", text.removesuffix("/")).strip(".-_+")
    return slug if len(slug) <= 90 else f"{slug[:80]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
