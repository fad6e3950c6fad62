"""Sweeps: pruning, several processes on one study, trials whose process is gone, and pickles in a study."""

import inspect
import multiprocessing
import os
import pickle

import numpy as np
import psutil
import pytest
from optuna.samplers import CmaEsSampler
from optuna.trial import TrialState
from runs.stand_in import RATE, train

from engram.config.sweep import SweepSettings
from engram.runs import pool, sweep
from engram.runs.sweep import OWNER, SafeCmaEsSampler, Sweep
from engram.settings import UserError


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "PRELOADED", [])
    monkeypatch.setattr(sweep, "POLL_SECONDS", 0.2)
    said = []

    def made(**options):
        settings = SweepSettings(study="s", search={RATE: {"low": 0.001, "high": 0.1}}, **options)
        return Sweep(settings, tmp_path, str(tmp_path / "s.db"), said.append), said

    return made


def test_a_trial_below_the_median_is_pruned(make):
    work, said = make(trials=2, warmup_trials=1)
    for rate in (0.05, 0.001):
        work.study.enqueue_trial({RATE: rate})
    result = work.work(train, 1, "recall")
    assert (result.complete, result.pruned, result.failed) == (1, 1, 0)
    assert result.best.params[RATE] == 0.05
    assert "s_trial-1: pruned at 300 steps with return 0.001" in said


def abandoned(work, pid):
    """A trial that was left running by this process."""
    work.study.enqueue_trial({RATE: 0.05})
    trial = work.study.ask()
    trial.suggest_float(RATE, 0.001, 0.1)
    trial.report(0.05, 100)
    trial.set_user_attr(OWNER, {**work._identity(), "pid": pid, "alive": 0.0})
    return trial


def gone():
    """The id of a process that has ended."""
    process = multiprocessing.get_context("spawn").Process()
    process.start()
    process.join()
    return process.pid


def test_a_trial_whose_process_is_gone_is_taken_up_with_its_values(make):
    work, said = make(trials=1)
    trial = abandoned(work, gone())
    result = work.work(train, 1, "recall")
    assert (result.complete, result.best.number) == (1, trial.number)
    assert "s_trial-0: resumed, because its process is gone" in said
    assert [*work.study.trials[0].intermediate_values] == [100, 200, 300]


def test_a_trial_of_a_living_process_is_left_alone(make):
    work, _ = make(trials=1)
    trial = abandoned(work, os.getpid())
    work.work(train, 1, "recall")
    assert work.study.trials[trial.number].state is TrialState.RUNNING


def test_only_one_of_two_processes_takes_a_trial_up(make, monkeypatch):
    work, _ = make(trials=1)
    trial = abandoned(work, gone())
    others = {"host": work._identity()["host"], "pid": 1, "created": psutil.Process(1).create_time(), "alive": 0.0}
    monkeypatch.setattr(sweep.time, "sleep", lambda seconds: trial.set_user_attr(OWNER, others))  # writes last
    assert work._next_trial() is None


def test_processes_that_begin_together_share_a_study(make, monkeypatch):
    create, calls = sweep.optuna.create_study, []

    def interrupted(**options):
        calls.append(options)
        if len(calls) == 1:
            raise RuntimeError("table studies already exists")  # another process is creating it
        return create(**options)

    monkeypatch.setattr(sweep.optuna, "create_study", interrupted)
    work, _ = make(trials=1)
    assert len(calls) == 2
    assert work.study.study_name == "s"


# A stranger's study may hold a pickle where Optuna keeps the state of CMA-ES: nothing of it runs.


class Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return type(self.path).touch, (self.path,)


def stored(value) -> dict[str, str]:
    return {"cma:optimizer:0": pickle.dumps(value).hex()}


def test_a_pickle_that_names_other_code_is_refused_and_does_not_run(tmp_path):
    with pytest.raises(UserError, match=r"would run pathlib\..*different sampler"):
        SafeCmaEsSampler()._concat_optimizer_attrs(stored(Touch(tmp_path / "touched")))
    assert not (tmp_path / "touched").exists()


def test_the_numbers_of_an_optimiser_are_read_as_they_are():
    attributes = stored({"mean": np.ones(3), "sigma": np.float64(0.5)})
    assert SafeCmaEsSampler()._concat_optimizer_attrs(attributes) == attributes["cma:optimizer:0"]


@pytest.mark.parametrize("text", ["00", "8004", "zz"])
def test_a_damaged_pickle_is_refused(text):
    with pytest.raises(UserError, match="damaged"):
        SafeCmaEsSampler()._concat_optimizer_attrs({"cma:optimizer:0": text})


def test_optuna_unpickles_nothing_but_what_was_checked():
    source = inspect.getsource(inspect.getmodule(CmaEsSampler))
    assert source.count("pickle.load") == 1
    assert "_concat_optimizer_attrs(optimizer_attrs)\n            return pickle.loads(" in source
