"""Searches settings with Optuna: each trial is a run, which can be resumed after anything that stops it."""

import io
import os
import pickle
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import optuna
import psutil
from optuna.samplers import CmaEsSampler
from optuna.trial import FrozenTrial, Trial, TrialState

from engram.config.sweep import SearchRange, SweepSettings, command_line, trial_name
from engram.env.registry import adapter_path
from engram.runs.group import with_no_workers
from engram.runs.pool import Finished, RunPool, Train
from engram.settings import UserError
from engram.stored.metrics import read_metrics

OWNER = "owner"  # a user attribute of a trial: the process that trains it
POLL_SECONDS = 1.0
HEARTBEAT_SECONDS = 60.0
OPENING_ATTEMPTS = 10
BEING_CREATED = ("already exists", "database is locked")  # in errors while another process creates the study too
DEAD_SECONDS = 600.0  # without a heartbeat: after them, a trial of another machine is resumed here
MAX_FAILURES = 3  # failed trials that stop the sweep, if none has succeeded
CMA_ES_CLASSES = {  # all that the stored state of CMA-ES may hold
    ("cmaes._cma", "CMA"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    *((f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
}
OTHER_SAMPLER = "use a different sampler, or a study of your own"


class SweepResult(NamedTuple):
    complete: int
    pruned: int
    failed: int
    best: FrozenTrial | None


class Sweep:
    """One process that works on a study; several can share it, on one machine or many."""

    def __init__(self, settings: SweepSettings, runs_dir: Path, storage: str, say: Callable[[str], None]) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.settings, self.runs_dir, self.say = settings, runs_dir, say
        self.study = open_study(settings, storage)
        self._trials: dict[str, Trial] = {}  # those that this process trains, by run
        self._reported: dict[str, int] = {}  # steps of the last report
        self._pruned: set[str] = set()
        self._heartbeat = time.monotonic()
        self._failures: list[str] = []

    def work(self, train: Train, parallel: int, env_kind: str) -> SweepResult:
        """Train trials until the study has `trials` of them."""
        with RunPool(train, parallel, [adapter_path(env_kind)]) as pool:
            while True:
                while pool.free and (trial := self._next_trial()) is not None:
                    run = trial_name(self.settings, trial.number)
                    self._trials[run] = trial
                    overrides = command_line(self.settings, self._values(trial), run)
                    pool.start(run, with_no_workers([*overrides, f"runs_dir={self.runs_dir}"]))
                if not pool.running:
                    break
                for ended in pool.finished(POLL_SECONDS):
                    self._finish_trial(ended)
                self._report_and_prune(pool)
        return outcome(self.study)

    def _next_trial(self) -> Trial | None:
        """An abandoned trial, or a new one; None if there are enough."""
        trials = self.study.get_trials(deepcopy=False)
        own = {trial.number for trial in self._trials.values()}
        for frozen in trials:
            if frozen.state is TrialState.RUNNING and frozen.number not in own and is_abandoned(frozen):
                trial = Trial(self.study, frozen._trial_id)
                if self._take_over(trial):
                    run = trial_name(self.settings, trial.number)
                    self._reported[run] = max(frozen.intermediate_values, default=-1)
                    self.say(f"{run}: resumed, because its process is gone")
                    return trial
        if sum(trial.state is not TrialState.WAITING for trial in trials) >= self.settings.trials:
            return None
        trial = self.study.ask()
        self._claim(trial)
        shown = " ".join(f"{name}={value}" for name, value in self._values(trial).items())
        self.say(f"{trial_name(self.settings, trial.number)}: {shown}")
        return trial

    def _claim(self, trial: Trial) -> None:
        trial.set_user_attr(OWNER, {**self._identity(), "alive": time.time()})

    def _take_over(self, trial: Trial) -> bool:
        """Claim an abandoned trial. Of several processes that try at the same time, the last one to write gets it."""
        self._claim(trial)
        time.sleep(POLL_SECONDS)
        (frozen,) = [each for each in self.study.get_trials(deepcopy=False) if each.number == trial.number]
        return frozen.state is TrialState.RUNNING and self._identity().items() <= frozen.user_attrs[OWNER].items()

    @staticmethod
    def _identity() -> dict[str, Any]:
        return {"host": socket.gethostname(), "pid": os.getpid(), "created": psutil.Process().create_time()}

    def _values(self, trial: Trial) -> dict[str, Any]:
        """The trial's values; a resumed trial keeps its own."""
        return {name: suggest(trial, name, space) for name, space in self.settings.search.items()}

    def _report_and_prune(self, pool: RunPool) -> None:
        """Tell Optuna the metric so far, and stop runs that it prunes."""
        beat = time.monotonic() - self._heartbeat > HEARTBEAT_SECONDS
        for run in pool.running:
            trial = self._trials[run]
            if beat:
                self._claim(trial)
            for steps in self._report_metric(trial, run):
                if steps >= self.settings.warmup_steps and run not in self._pruned and trial.should_prune():
                    self._pruned.add(run)
                    pool.stop(run)
        if beat:
            self._heartbeat = time.monotonic()

    def _report_metric(self, trial: Trial, run: str) -> Iterator[int]:
        """Report the new values to Optuna one after the other; yields the steps of each, so that pruning can follow."""
        for steps, value in self._metric(run):
            if steps > self._reported.get(run, -1):
                trial.report(value, steps)
                self._reported[run] = steps
                yield steps

    def _metric(self, run: str) -> list[tuple[int, float]]:
        records = read_metrics(self.runs_dir / run)
        name = self.settings.metric
        return [(int(record["steps"]), float(record[name])) for record in records if record.get(name) is not None]

    def _finish_trial(self, ended: Finished) -> None:
        trial = self._trials.pop(ended.name)
        found = self._metric(ended.name)
        if ended.name in self._pruned and ended.code:
            self.study.tell(trial, state=TrialState.PRUNED)
            self.say(f"{ended.name}: pruned at {found[-1][0]:,} steps with {self.settings.metric} {found[-1][1]:.4g}")
            return
        if ended.code or not found:
            reason = ended.output or f"it wrote no {self.settings.metric} into metrics.jsonl"
            self.study.tell(trial, state=TrialState.FAIL)
            self._failures.append(reason)
            self.say(f"{ended.name}: failed\n{reason}")
            if len(self._failures) >= MAX_FAILURES and not outcome(self.study).complete:
                raise UserError(f"sweep: the first {MAX_FAILURES} trials failed, the last one with\n{reason}")
            return
        for _ in self._report_metric(trial, ended.name):
            pass  # the last values are reported too: the pruner compares other trials with them
        self.study.tell(trial, found[-1][1])
        self.say(f"{ended.name}: {self.settings.metric} {found[-1][1]:.4g} after {ended.seconds:.0f} s")


def open_study(settings: SweepSettings, storage: str) -> optuna.Study:
    for attempt in range(OPENING_ATTEMPTS):
        try:
            return optuna.create_study(
                study_name=settings.study,
                storage=storage_url(storage),
                sampler=_sampler(settings),
                pruner=_pruner(settings),
                direction=settings.direction,
                load_if_exists=True,
            )
        except Exception as error:  # of any database and its driver
            text = str(error).strip()
            if attempt + 1 < OPENING_ATTEMPTS and any(sign in text for sign in BEING_CREATED):
                time.sleep(POLL_SECONDS)
                continue
            reason = text.splitlines()[0] if text else type(error).__name__
            raise UserError(f"storage: {storage} cannot be opened ({reason}): give a file or an Optuna URL") from error
    raise AssertionError


def storage_url(storage: str) -> str:
    """An Optuna URL; a file is an SQLite database."""
    if "://" in storage:
        return storage
    Path(storage).parent.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{storage}"


def suggest(trial: Trial, name: str, space: SearchRange) -> Any:
    if space.choices is not None:
        return trial.suggest_categorical(name, space.choices)
    if isinstance(space.low, int) and isinstance(space.high, int) and isinstance(space.step, int | None):
        return trial.suggest_int(name, space.low, space.high, step=space.step or 1, log=space.log)
    assert space.low is not None
    assert space.high is not None
    return trial.suggest_float(name, space.low, space.high, step=space.step, log=space.log)


def is_abandoned(trial: FrozenTrial) -> bool:
    """Whether the process of a trial is gone: by its id on this machine, by its heartbeat on another one."""
    owner = trial.user_attrs.get(OWNER)
    if owner is None:  # killed between asking and claiming
        began = trial.datetime_start
        return began is not None and time.time() - began.timestamp() > POLL_SECONDS * 10
    if owner["host"] != socket.gethostname():
        return time.time() - owner["alive"] > DEAD_SECONDS
    with suppress(psutil.Error):
        return abs(psutil.Process(owner["pid"]).create_time() - owner["created"]) > 1
    return True


def outcome(study: optuna.Study) -> SweepResult:
    states = [trial.state for trial in study.get_trials(deepcopy=False)]
    complete = states.count(TrialState.COMPLETE)
    best = study.best_trial if complete else None
    return SweepResult(complete, states.count(TrialState.PRUNED), states.count(TrialState.FAIL), best)


def _sampler(settings: SweepSettings) -> optuna.samplers.BaseSampler:
    samplers: dict[str, Callable[..., optuna.samplers.BaseSampler]] = {
        "tpe": optuna.samplers.TPESampler,
        "random": optuna.samplers.RandomSampler,
        "cmaes": SafeCmaEsSampler,
        "gp": optuna.samplers.GPSampler,
        "qmc": optuna.samplers.QMCSampler,
    }
    return samplers[settings.sampler](seed=settings.seed + os.getpid())  # so that processes sample different values


def _pruner(settings: SweepSettings) -> optuna.pruners.BasePruner:
    if settings.pruner == "none":
        return optuna.pruners.NopPruner()
    if settings.pruner == "hyperband":
        return optuna.pruners.HyperbandPruner()
    return optuna.pruners.MedianPruner(settings.warmup_trials, settings.warmup_steps)


class SafeCmaEsSampler(CmaEsSampler):
    """CMA-ES that unpickles only arrays and the optimiser itself.

    A study's database may be a stranger's, and Optuna keeps the optimiser in it as a pickle.
    """

    def _concat_optimizer_attrs(self, optimizer_attrs: dict[str, str]) -> str:
        """The pickle that Optuna loads next, in hexadecimal digits; raises if it names anything else."""
        text: str = super()._concat_optimizer_attrs(optimizer_attrs)
        try:
            _CheckedUnpickler(io.BytesIO(bytes.fromhex(text))).load()
        except UserError:
            raise
        except Exception as error:  # a damaged pickle raises anything
            raise UserError(
                f"storage: the state of the sampler cmaes in it is damaged ({error}): {OTHER_SAMPLER}"
            ) from error
        return text


class _CheckedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in CMA_ES_CLASSES:
            raise UserError(f"storage: the state of the sampler cmaes in it would run {module}.{name}: {OTHER_SAMPLER}")
        return super().find_class(module, name)
