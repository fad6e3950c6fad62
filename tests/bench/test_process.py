"""Programs that are measured from outside: the protocol, suspension between turns, and failures."""

import sys
import time
from pathlib import Path

import psutil
import pytest

from engram.bench import meter
from engram.bench.process import ProgramError, in_own_process, learn, start_program
from engram.bench.race import Slice

FOLDER = Path(meter.__file__).parent

COUNTING = f"""
import sys, time
sys.path.append({str(FOLDER)!r})
now = 0.0
time.perf_counter = lambda: now  # a clock that only work advances
from meter import Meter
meter = Meter()
print("libraries print")
steps = 0
while True:
    with meter.phase("learning"):
        now += 2
        with meter.phase("environment"):
            now += 6
    meter.note("seen", 1.0)
    steps += 10
    meter.updates += 2
    meter.iteration(10, float(steps))
"""


@pytest.fixture
def counting(tmp_path) -> list[str]:
    path = tmp_path / "counting.py"
    path.write_text(COUNTING)
    return [sys.executable, str(path)]


def test_a_program_is_measured_on_command_in_whole_iterations(counting) -> None:
    with in_own_process(counting, threads=1)() as measure:
        for _ in range(2):
            # Time in a nested phase does not count for the outer one.
            assert measure(20) == Slice(30, 24, {"learning": 6, "environment": 18})


def test_a_program_that_updates_too_often_fails(counting) -> None:
    with in_own_process(counting, threads=1, steps_per_update=5)() as measure:
        assert measure(20).work == 30
    with (
        in_own_process(counting, threads=1, steps_per_update=10)() as measure,
        pytest.raises(ProgramError, match="6 updates in 30 steps; expected one every 10 steps"),
    ):
        measure(20)


def test_learning_runs_up_to_a_number_of_steps_and_reports_the_return(counting) -> None:
    reply = learn(counting, threads=1, steps=55)
    assert (reply["steps"], reply["return"]) == (60, 60)


def test_a_program_is_suspended_between_its_turns(counting) -> None:
    with start_program(counting, {}) as process:
        child = psutil.Process(process._process.pid)
        process.request({"measure": 0.01}, timeout=20)
        deadline = time.monotonic() + 20
        while child.status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
            time.sleep(0.01)
        assert child.status() == psutil.STATUS_STOPPED
        assert process.request({"measure": 0.01}, timeout=20)["notes"]["seen"]
    assert not child.is_running()


def test_the_last_line_of_its_errors_is_the_reason_of_a_failure(tmp_path) -> None:
    path = tmp_path / "failing.py"
    path.write_text("raise ValueError('no such game')")
    with pytest.raises(ProgramError, match="ValueError: no such game"), start_program([sys.executable, str(path)], {}):
        pass


def test_a_program_that_does_not_reply_times_out(tmp_path) -> None:
    path = tmp_path / "silent.py"
    path.write_text(COUNTING.replace("steps = 0", "meter.iteration(1); time.sleep(60)"))
    with (
        start_program([sys.executable, str(path)], {}) as process,
        pytest.raises(ProgramError, match="no reply within"),
    ):
        process.request({"measure": 0.01}, timeout=0.3)
