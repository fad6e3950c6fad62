"""Following a run from outside, through its files."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from engram.display import watching
from engram.display.watching import PlainWatcher, RunFollower, TerminalWatcher
from engram.stored.plan import PlannedEnv, PlannedSizes, StoredPlan, write_plan

SIZES = dict.fromkeys(PlannedSizes.model_fields, 8) | {"batch_size": 4096}
PLAN = StoredPlan(
    run="first",
    policy="fast",
    env=PlannedEnv(name="tmaze", agents=1, memoryless_ceiling=0.45, mean_return_goal=1.0, uniform_entropy=1.6),
    sizes=PlannedSizes(**SIZES),
    device="cpu",
    parameters=100,
    total_timesteps=8192,
    steps_done=0,
    steps_at_end=8192,
)


@pytest.fixture
def directory(tmp_path):
    write_plan(tmp_path, PLAN)
    return tmp_path


def write(directory, *records, mode="a"):
    with (directory / "metrics.jsonl").open(mode) as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def drawn(follower) -> str:
    console = Console(
        file=io.StringIO(), width=80, height=24, force_terminal=True, record=True, _environ={"TERM": "xterm"}
    )
    with TerminalWatcher(console) as watcher:
        watcher.show(follower)
    return console.export_text()


def test_a_running_run_is_followed_to_its_end(directory, record):
    follower = RunFollower(directory)
    write(directory, record(1))
    follower.read(running=True)
    assert "4,096 of 8,192 steps · epoch 1" in drawn(follower)
    assert not follower.complete
    write(directory, record(2))
    follower.read(running=False)
    assert follower.complete
    assert "engram first done" in drawn(follower)


def test_a_killed_run_that_is_resumed_from_a_checkpoint_is_drawn_from_there(directory, record):
    follower = RunFollower(directory)
    write(directory, record(1, mean_return=0.9))
    follower.read(running=False)
    assert "engram first stopped" in drawn(follower)
    write(directory, record(1, mean_return=0.2), mode="w")
    follower.read(running=True)
    text = drawn(follower)
    assert "return 0.20 · best 0.20" in text
    assert "stopped" not in text


def test_a_run_that_is_still_being_built_is_waited_for(tmp_path, record):
    follower = RunFollower(tmp_path)
    follower.read(running=True)
    assert "no epoch has begun yet" in drawn(follower)
    write_plan(tmp_path, PLAN)
    write(tmp_path, record(1))
    follower.read(running=True)
    assert "epoch 1" in drawn(follower)


def test_the_last_checkpoint_is_shown(directory, record):
    (directory / "checkpoints" / "epoch_000001").mkdir(parents=True)
    (directory / "checkpoints" / "epoch_000010").mkdir()
    write(directory, record(1))
    follower = RunFollower(directory)
    follower.read(running=True)
    assert "epoch 10" in drawn(follower)


def test_checkpoints_are_not_listed_again_for_every_line_of_a_long_run(directory, record, monkeypatch):
    calls: list[Path] = []
    monkeypatch.setattr(watching, "last_checkpoint", lambda path: calls.append(path) or 1)
    write(directory, *(record(epoch) for epoch in range(1, 50)))
    RunFollower(directory).read(running=True)
    assert len(calls) == 1


def test_records_of_a_stranger_do_not_break_the_watcher(directory):
    (directory / "checkpoints" / "epoch_²").mkdir(parents=True)
    write(directory, {"steps": "x", "return": []}, {"steps": 1, "return": "high", "loss/kl": {}, "episode/a": "b"})
    times = {"time/steps_per_second": 1e-308, "time/learning_seconds": float("inf"), "time/seconds": float("nan")}
    write(directory, {"steps": 1, "epoch": float("inf"), "loss/kl": float("inf"), **times})
    follower = RunFollower(directory)
    follower.read(running=False)
    drawn(follower)


def test_elsewhere_than_in_a_terminal_each_epoch_is_a_line(directory, record):
    stream, follower = io.StringIO(), RunFollower(directory)
    write(directory, record(1))
    watcher = PlainWatcher(stream)
    for _ in range(2):
        follower.read(running=True)
        watcher.show(follower)
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("epoch 1 steps 4,096/8,192 return 0.31")
    assert line.endswith(" running")
