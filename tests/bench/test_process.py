"""Programs that are measured from outside: the protocol, standing still between turns, and last words."""

import sys
import time
from pathlib import Path

import psutil
import pytest

from engram.bench import runners
from engram.bench.process import PeerError, contestant, learn, opened
from engram.bench.race import Slice

RUNNERS = Path(runners.__file__).parent

COUNTING = f"""
import sys, time
sys.path.insert(0, {str(RUNNERS)!r})
now = 0.0
time.perf_counter = lambda: now  # a clock that only work moves on
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
    with contestant(counting, threads=1)() as measure:
        for _ in range(2):
            # What is within another phase does not count for that one.
            assert measure(20) == Slice(30, 24, {"learning": 6, "environment": 18})


def test_a_program_that_updates_more_or_less_often_is_not_compared(counting) -> None:
    with contestant(counting, threads=1, steps_per_update=5)() as measure:
        assert measure(20).work == 30
    with (
        contestant(counting, threads=1, steps_per_update=10)() as measure,
        pytest.raises(PeerError, match="6 updates in 30 steps, one is due every 10"),
    ):
        measure(20)


def test_learning_goes_on_to_a_number_of_steps_and_tells_the_return(counting) -> None:
    answer = learn(counting, threads=1, steps=55)
    assert (answer["steps"], answer["return"]) == (60, 60)


def test_between_its_turns_a_program_stands_still(counting) -> None:
    with opened(counting, {}) as process:
        child = psutil.Process(process._process.pid)
        process.ask({"measure": 0.01}, timeout=20)
        deadline = time.monotonic() + 20
        while child.status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
            time.sleep(0.01)
        assert child.status() == psutil.STATUS_STOPPED
        assert process.ask({"measure": 0.01}, timeout=20)["notes"]["seen"]
    assert not child.is_running()


def test_what_a_program_said_last_is_the_reason_of_its_failure(tmp_path) -> None:
    path = tmp_path / "failing.py"
    path.write_text("raise ValueError('no such game')")
    with pytest.raises(PeerError, match="ValueError: no such game"), opened([sys.executable, str(path)], {}):
        pass


def test_a_program_that_does_not_answer_is_given_up(tmp_path) -> None:
    path = tmp_path / "silent.py"
    path.write_text(COUNTING.replace("steps = 0", "meter.iteration(1); time.sleep(60)"))
    with opened([sys.executable, str(path)], {}) as process, pytest.raises(PeerError, match="no answer within"):
        process.ask({"measure": 0.01}, timeout=0.3)
