"""The speed of a run and the time left."""

import pytest

from engram.display.progress import RunProgress


def test_speed_is_steps_divided_by_time_when_epochs_differ_in_speed(plan, record):
    progress = RunProgress(plan, clock=lambda: 0.0)
    progress.add(record(1, **{"time/steps_per_second": 4096.0}))  # one second
    progress.add(record(2, **{"time/steps_per_second": 2048.0}))  # two
    assert progress.steps_per_second == pytest.approx(2 * 4096 / 3)


def test_time_left_counts_down_between_records(plan, record):
    now = [0.0]
    progress = RunProgress(plan, clock=lambda: now[0])
    progress.add(record(100))
    left = (1_000_000 - 409_600) / 8192
    assert progress.seconds_left == pytest.approx(left)
    now[0] = 3.0
    assert progress.seconds_left == pytest.approx(left - 3)
    assert progress.seconds == pytest.approx(50 + 3)


def test_the_clock_stops_when_a_run_ends(plan, record):
    now = [0.0]
    progress = RunProgress(plan, clock=lambda: now[0])
    progress.add(record(100))
    progress.end("done")
    now[0] = 60.0
    assert progress.seconds == 50
    assert progress.seconds_left is None


def test_time_fractions_add_up_to_one_even_when_phases_overlap(plan, record):
    progress = RunProgress(plan, clock=lambda: 0.0)
    progress.add(record(1, **{"time/environment_seconds": 0.6}))
    assert sum(progress.time_fractions.values()) == pytest.approx(1)
    assert progress.time_fractions["other"] == pytest.approx(0)


def test_a_resumed_run_starts_at_the_steps_it_has_done(plan):
    plan.steps_done = 500_000
    assert RunProgress(plan).fraction_done == 0.5
