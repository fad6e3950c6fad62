"""How fast a run goes and how long it will still take."""

import pytest

from engram.display.story import Story


def test_speed_is_steps_by_time_also_when_epochs_differ(plan, record):
    story = Story(plan, clock=lambda: 0.0)
    story.add(record(1, **{"time/steps_per_second": 4096.0}))  # one second
    story.add(record(2, **{"time/steps_per_second": 2048.0}))  # two
    assert story.steps_per_second == pytest.approx(2 * 4096 / 3)


def test_time_left_counts_down_between_records(plan, record):
    now = [0.0]
    story = Story(plan, clock=lambda: now[0])
    story.add(record(100))
    left = (1_000_000 - 409_600) / 8192
    assert story.seconds_left == pytest.approx(left)
    now[0] = 3.0
    assert story.seconds_left == pytest.approx(left - 3)
    assert story.seconds == pytest.approx(50 + 3)


def test_a_run_that_has_ended_waits_for_nothing(plan, record):
    now = [0.0]
    story = Story(plan, clock=lambda: now[0])
    story.add(record(100))
    story.end("done")
    now[0] = 60.0
    assert story.seconds == 50
    assert story.seconds_left is None


def test_shares_add_up_even_when_phases_overlap(plan, record):
    story = Story(plan, clock=lambda: 0.0)
    story.add(record(1, **{"time/environment_seconds": 0.6}))
    assert sum(story.shares.values()) == pytest.approx(1)
    assert story.shares["other"] == pytest.approx(0)


def test_a_run_that_goes_on_begins_where_it_stopped(plan):
    plan.steps_done = 500_000
    assert Story(plan).share_done == 0.5
