"""Small runs on two real ranks, connected by gloo."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from support import running
from support.two_ranks import TIMEOUT, Ended, Job, environment, run_on_two_ranks

from engram.training import distributed
from engram.training.checkpoint.files import load_latest
from engram.training.checkpoint.resume import RankState, join_ranks
from engram.training.distributed import World
from engram.training.launch import RankInfo
from engram.training.watchdog import TrainingStoppedError

FAKES = Path(__file__).parent / "fakes" / "mortal.py"
JITTER = ("env=recall", "env.delay=2", "env.delay_jitter=2", "env.truncate=0.05")
# One minibatch is the whole batch, and a large eps keeps Adam from turning rounding errors into full steps.
HALVES = ("trainer.minibatch_size=96", "trainer.optimizer.eps=1e-5", "trainer.scale_batches_by_world_size=true")
# Everything random: minibatches, priorities, and a KL stop that all ranks must make together.
RANDOM = ("trainer.prioritized.prio_alpha=0.6", "trainer.ppo.target_kl=0.0001", "trainer.evaluate_interval=2")
MORTAL = (f"py_agent={FAKES}:Mortal", *RANDOM)


def words(directory: Path, name: str, *more: str, epochs: int = 5, env: Sequence[str] = JITTER) -> list[str]:
    steps = f"trainer.total_timesteps={epochs * 2 * running.BATCH}"
    return [*env, *running.SMALL, steps, f"runs_dir={directory}", f"run={name}", *more]


def frail(directory: Path) -> list[str]:
    """Its environment fails twice on rank 1, in the second and in the third epoch; one restart is allowed."""
    counter = directory / "counter"
    counter.touch()
    file = FAKES.with_name("frail.py")
    env = ["env=python", f"env.name={file}:Frail", f"env.kwargs={{counter: {counter}}}"]
    once = ["trainer.num_workers=1", "trainer.worker_restarts=1", "trainer.checkpoint.interval=100"]
    return words(directory, "frail", *once, env=env)


def weights(directory: Path, name: str = "x") -> dict[str, torch.Tensor]:
    checkpoint, problems = load_latest(directory / name / "checkpoints")
    assert checkpoint is not None
    assert not problems
    return checkpoint.groups["weights"]


class Runs(NamedTuple):
    directory: Path
    ended: dict[str, tuple[Ended, Ended]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Runs:
    """Runs on two ranks; rank 1 gets another directory, `unused`."""
    where = tmp_path_factory.mktemp("runs")
    rank_1 = (f"runs_dir={where / 'unused'}",)
    jobs = {
        "halves": Job(words(where, "halves", *HALVES, "trainer.total_timesteps=288"), rank_1),
        "whole": Job(words(where, "whole", *MORTAL), rank_1),
        "begun": Job(words(where, "pieces", *MORTAL), rank_1, stop=3),
        "pieces": Job(words(where, "pieces", *MORTAL), rank_1),
        "failing": Job(words(where, "failing", f"py_agent={FAKES}:Failing"), rank_1),
        "exploding": Job(words(where, "exploding", f"py_agent={FAKES}:Exploding"), rank_1),
        "unequal": Job(words(where, "unequal"), (*rank_1, "seed=2")),
        "exhausted": Job(frail(where), rank_1),
        "mended": Job(frail(where), rank_1),
    }
    return Runs(where, dict(zip(jobs, run_on_two_ranks(list(jobs.values())), strict=True)))


def test_two_ranks_with_half_the_rows_each_learn_the_same_as_one_with_all_rows(runs, tmp_path) -> None:
    running.run(tmp_path, *JITTER, *HALVES)
    halves = weights(runs.directory, "halves")
    for name, tensor in weights(tmp_path).items():
        torch.testing.assert_close(halves[name], tensor, rtol=0, atol=1e-5)
    for one, both in zip(running.metrics(tmp_path), running.metrics(runs.directory, "halves"), strict=True):
        sampled = {name for name in one if name.startswith("observation/")}  # from rows of the first rank only
        assert {k: both[k] for k in both.keys() - sampled} == pytest.approx(
            {k: one[k] for k in one.keys() - sampled}, abs=1e-4
        )


def test_two_interrupted_ranks_resume_exactly(runs) -> None:
    where = runs.directory
    assert running.log(where, "pieces").count("resume: exact") == 1
    assert running.metrics(where, "pieces") == running.metrics(where, "whole")
    for name, tensor in weights(where, "whole").items():
        assert torch.equal(tensor, weights(where, "pieces")[name]), name


def test_only_rank_0_writes_files_and_steps_count_all_ranks(runs) -> None:
    assert not (runs.directory / "unused").exists()
    files = {path.name for path in (runs.directory / "whole").iterdir()}
    assert files == {"settings.yaml", "plan.json", "metrics.jsonl", "log.txt", "checkpoints", ".lock"}
    assert [record["steps"] for record in running.metrics(runs.directory, "whole")] == [192, 384, 576, 768, 960]


def test_a_checkpoint_holds_the_different_state_of_every_rank(runs) -> None:
    checkpoint, _ = load_latest(runs.directory / "whole" / "checkpoints")
    assert checkpoint is not None
    for group in ("memory", "random", "environment"):
        first, second = checkpoint.groups[group], checkpoint.groups[f"{group}.rank1"]
        assert first.keys() == second.keys()
        assert any(not torch.equal(first[name], second[name]) for name in first)
    noise = [checkpoint.groups[group]["actions"] for group in ("random", "random.rank1")]
    assert torch.equal(*noise)  # every rank draws the noise of all rows and uses that of its own


def test_resuming_with_fewer_ranks_keeps_the_weights_and_reports_what_starts_fresh(runs, tmp_path) -> None:
    shutil.copytree(runs.directory / "halves", tmp_path / "halves")
    before, display = weights(tmp_path, "halves"), running.Silent()
    running.run(tmp_path, *JITTER, *HALVES, name="halves", display=display)
    warning = "resume: with 1 rank, not 2: weights, optimiser, counters and schedules are restored; environments"
    assert any(warning in message for message in display.messages)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(tmp_path, "halves").items())
    running.run(tmp_path, *JITTER, *HALVES, name="halves", epochs=5)
    records = running.metrics(tmp_path, "halves")
    assert [record["steps"] for record in records] == [96, 192, 288, 384, 480]
    assert records[3]["memory/replay_error"] < 1e-5


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("failing", "rank 1 of 2: this policy has had enough"),
        ("exploding", " is nan: "),
        ("unequal", "rank 1 of 2: seed: 2, but 1 on rank 0"),
        ("begun", "stopped; 1 epoch since the last checkpoint is lost (trainer.checkpoint.interval): run the same"),
    ],
)
def test_when_one_rank_stops_all_stop_and_one_reports_the_reason(runs, run: str, message: str) -> None:
    first, second = runs.ended[run]
    assert first.code
    assert second.code
    assert (first.error + second.error).count(message) == 1
    assert len((first.error + second.error).splitlines()) == 1


def test_when_environments_of_one_rank_fail_too_often_all_epochs_are_saved_and_one_error_says_so(runs) -> None:
    first, second = runs.ended["exhausted"]
    assert (first.code, second.code, first.error) == (1, 1, "")
    assert second.error.startswith("rank 1 of 2: env ")
    assert "ArithmeticError: the wheel came off" in second.error
    assert "This was after 1 restart within 10 minutes (trainer.worker_restarts)." in second.error
    assert second.error.endswith("The same command resumes from epoch 2.\n")


def test_ranks_that_gave_up_resume_with_new_episodes(runs) -> None:
    assert [ended.code for ended in runs.ended["mended"]] == [0, 0]
    assert "resume: environments reset" in running.log(runs.directory, "frail")
    assert [record["epoch"] for record in running.metrics(runs.directory, "frail")] == [1, 2, 3, 4, 5]


def test_ranks_interrupted_after_different_epochs_report_it_once(monkeypatch) -> None:
    monkeypatch.setattr(distributed, "REPORT_GRACE", 0.0)
    store = torch.distributed.HashStore()
    worlds = [World(RankInfo(rank=rank, size=2), store) for rank in range(2)]
    reports = [world.should_report(KeyboardInterrupt(f"stopped after epoch {world.rank}")) for world in worlds]
    assert reports == [True, False]


def test_successful_runs_report_no_error(runs) -> None:
    for run in ("halves", "whole", "pieces"):
        assert [(rank.code, rank.error) for rank in runs.ended[run]] == [(0, ""), (0, "")]


def test_the_ranks_of_one_machine_listen_on_the_loopback_interface_only(runs) -> None:
    assert [rank.listened for rank in runs.ended["whole"]] == [["127.0.0.1"], ["127.0.0.1"]]


def test_ranks_with_different_weights_are_stopped() -> None:
    parts = [RankState({}, {}, "same"), RankState({}, {}, "same"), RankState({}, {}, "other")]
    with pytest.raises(TrainingStoppedError, match="rank 2 of 3 has different weights than rank 0"):
        join_ranks({}, parts)


def test_a_killed_rank_is_restarted_and_the_run_ends_like_an_uninterrupted_one(runs, tmp_path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1", "--standalone")
    command = [sys.executable, *torchrun, "-m", "engram", "train", *words(tmp_path, "x", *MORTAL)]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=TIMEOUT)
    assert ended.returncode == 0, ended.stderr
    assert "exitcode: -9" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert running.log(tmp_path).count("resume: exact") == 1
    assert running.metrics(tmp_path) == running.metrics(runs.directory, "whole")
    for name, tensor in weights(runs.directory, "whole").items():
        assert torch.equal(tensor, weights(tmp_path)[name]), name
