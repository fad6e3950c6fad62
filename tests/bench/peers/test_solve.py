"""Seconds until a task is solved: what is compared, what is kept, and what a failure leaves behind."""

import io
import json
import time
from contextlib import contextmanager

import pytest

from bench.peers import solve
from bench.peers.solve import Solving, summarize
from engram.bench import meter as meter_module
from engram.bench.meter import Meter
from engram.bench.process import STARTED, ProgramError
from engram.bench.train import MeterDisplay

CURVES = {
    "engram": [
        [5.0, 1000, None, 90.0],
        [10.0, 2000, 300.0, 499.0],
        [20.0, 4000, 498.0, 480.0],
        [30.0, 6000, 480.0, 500.0],
    ],
    "sb3_zoo": [[20.0, 500, 100.0, None], [90.0, 1000, 400.0, 496.0], [200.0, 2000, 499.0, 500.0]],
}


def test_rows_compare_seconds_to_the_goal_and_returns_at_equal_time() -> None:
    runs = [Solving("control/CartPole", system, 1, curve, None) for system, curve in CURVES.items()]
    engram, other = summarize([*runs, Solving("control/CartPole", "sb3_zoo", 2, [], None, "it went wrong")])
    assert (engram["seconds"], engram["steps"], engram["final_return"]) == (20.0, 4000.0, 480.0)
    assert (other["seconds"], other["times_engram"], other["return_at_engrams_time"]) == (200.0, 10.0, 100.0)
    assert (other["runs"], other["reached"], other["failed"]) == (1, 1, "it went wrong")
    assert (engram["greedy_seconds"], engram["greedy_steps"]) == (10.0, 2000.0)
    assert (other["greedy_seconds"], other["greedy_reached"]) == (90.0, 1)


def test_systems_that_are_not_evaluated_meanwhile_have_no_greedy_figures() -> None:
    runs = [Solving("control/CartPole", "rl_games", 1, [[9.0, 500, 499.0, None]], None)]
    (row,) = summarize(runs)
    assert (row["seconds"], row["greedy_reached"], row["greedy_seconds"]) == (9.0, None, None)


def test_a_goal_that_half_of_the_runs_miss_has_no_median() -> None:
    missed = [[10.0, 2000, 300.0, None]]
    runs = [
        Solving("control/CartPole", "engram", seed, curve, None)
        for seed, curve in enumerate([CURVES["engram"], missed])
    ]
    (row,) = summarize(runs)
    assert (row["reached"], row["seconds"]) == (1, None)


def test_finished_runs_are_kept_and_failures_are_tried_again(tmp_path, monkeypatch, capsys) -> None:
    started = []

    @contextmanager
    def start_program(command, environment):
        started.append(command)
        if "run_sb3_zoo" in " ".join(command):
            raise ProgramError("no such module")

        class Program:
            def request(self, message, timeout):
                assert message == {"train": 60}
                return {"curve": CURVES["engram"]}

        yield Program()

    monkeypatch.setattr(solve, "start_program", start_program)
    monkeypatch.setattr(solve, "python_of", lambda name, venvs: "python")
    words = ["--tasks", "control/Pendulum", "--seeds", "1", "--limit", "60", "--out", str(tmp_path)]
    words += ["--systems", "engram,sb3_zoo"]
    assert solve.main(words) == 0
    assert len(started) == 2
    assert "no such module" in capsys.readouterr().out
    assert solve.main(words) == 0
    assert len(started) == 3  # the failed one alone
    rows = json.loads((tmp_path / "solve.json").read_text())["rows"]
    assert [row["system"] for row in rows] == ["Engram", "sb3-contrib"]


def test_every_system_of_a_task_has_a_command(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(solve, "python_of", lambda name, venvs: "python")
    for task, systems in solve.TASKS.items():
        for system in systems:
            program, _ = solve._program(task, system, 3, tmp_path)
            assert json.loads(program[-1])
    with pytest.raises(KeyError):
        solve._program("control/CartPole", "nobody", 3, tmp_path)


def test_the_meter_records_a_curve_and_replies_when_training_ends(monkeypatch) -> None:
    replies = io.StringIO()
    monkeypatch.setattr(meter_module.os, "dup", lambda number: 1)
    monkeypatch.setattr(meter_module.os, "dup2", lambda *numbers: None)
    monkeypatch.setattr(meter_module.os, "fdopen", lambda *arguments, **more: replies)
    monkeypatch.setattr(meter_module.sys, "stdin", io.StringIO('{"train": 1000}\n{"train": 0}\n{"train": 0}\n'))
    meter = Meter()
    for steps, value in ((10, None), (10, 1.0)):
        meter.iteration(steps, value)
    meter.exclude(3600.0)
    meter.iteration(10, 2.0, greedy=5.0)
    meter.end(greedy=3.0)
    ready, reply = (json.loads(line) for line in replies.getvalue().splitlines())
    assert ready == {"ready": True}
    assert [point[1:] for point in reply["curve"]] == [[20, 1.0, None], [30, 2.0, 5.0]]
    assert reply["curve"][1][0] < 0  # an hour of evaluation before it was not counted
    assert reply["greedy"] == 3.0


def test_seconds_count_from_the_start_of_the_program(monkeypatch) -> None:
    replies = io.StringIO()
    monkeypatch.setenv(STARTED, repr(time.time() - 3600))
    monkeypatch.setattr(meter_module.os, "dup", lambda number: 1)
    monkeypatch.setattr(meter_module.os, "dup2", lambda *numbers: None)
    monkeypatch.setattr(meter_module.os, "fdopen", lambda *arguments, **more: replies)
    monkeypatch.setattr(meter_module.sys, "stdin", io.StringIO('{"train": 60}\n{"train": 0}\n'))
    meter = Meter()
    meter.iteration(10)
    meter.iteration(10)
    _, reply = (json.loads(line) for line in replies.getvalue().splitlines())
    assert 3600 <= reply["curve"][0][0] < 3660


def test_a_recent_return_is_the_mean_of_the_last_episodes() -> None:
    class Recorder:
        returns: list = []

        def add(self, *_): ...

        def note(self, *_): ...

        def exclude(self, seconds): ...

        def iteration(self, steps, value, greedy):
            self.returns.append(value)

    display = MeterDisplay(Recorder(), recent=4)  # type: ignore[arg-type]
    for number, (count, mean) in enumerate([(3, 1.0), (0, None), (2, 6.0), (9, 8.0)], 1):
        record = {"steps": number, "episode/count": count, "return": 0.0, "process/megabytes": 1.0}
        record |= {"time/steps_per_second": 1.0} | ({"episode/return": mean} if count else {})
        display.update(record)
    assert Recorder.returns == [None, None, 3.5, 8.0]
