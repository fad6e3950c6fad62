"""The panel: all figures at common sizes, and nothing breaks at uncommon ones."""

import io
import math
from dataclasses import replace

import pytest
from rich.console import Console

from engram.display.panel import run_panel
from engram.display.story import Story


def text_of(story: Story, width: int = 80, height: int = 24) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, record=True)
    console.print(run_panel(story, width, height))
    return console.export_text()


@pytest.fixture
def story(plan) -> Story:
    return Story(plan, clock=lambda: 0.0)


@pytest.mark.parametrize("width", [80, 120])
def test_all_that_is_known_is_shown(story, record, width):
    for epoch in range(1, 151):
        story.add(record(epoch, mean_return=epoch / 200))
    text = text_of(story, width)
    for shown in (
        *("first", "fast on tmaze", "1,234,567 parameters", "cpu", "64 environments", "2 workers"),
        *("61%", "614,400 of 1,000,000 steps", "epoch 150", "1:15 gone", "0:47 left"),
        *("8,192 steps/s", "environment 40%", "inference 20%", "learning 30%", "other 10%"),
        *("return 0.75 · without memory at most 0.45", "1.00 at best", "0.45 without memory"),
        *("12.30", "-0.0123", "0.0034", "1.21", "0.0031", "8%", "0.87", "0.421", "2.4e-07 ✓", "4.21", "812 MB"),
    ):
        assert shown in text


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (100, 20), (60, 30)])
def test_the_panel_and_the_cursor_below_it_fit_the_terminal_from_the_first_moment_to_the_last(
    story, record, width, height
):
    heights = [len(text_of(story, width, height).splitlines())]
    for epoch in (1, 2, 245):
        story.add(record(epoch))
        heights.append(len(text_of(story, width, height).splitlines()))
    assert max(heights) < height
    assert width < 80 or len(set(heights)) == 1


@pytest.mark.parametrize("width", [1, 2, 5, 12, 30, 47, 200])
@pytest.mark.parametrize("height", [1, 5, 12, 100])
def test_any_size_can_be_drawn(story, record, width, height):
    story.add(record(1))
    story.add(record(2))
    assert all(len(line) <= width for line in text_of(story, width, height).splitlines())


def test_before_the_first_epoch_there_is_nothing_to_tell_but_the_plan(story):
    text = text_of(story)
    assert "0 of 1,000,000 steps · the first epoch is under way" in text
    assert "no episode has ended yet" in text


def test_a_record_without_figures_is_shown_with_dashes(story):
    story.add({"epoch": 1, "steps": 4096, "return": None})
    assert "4,096 of 1,000,000 steps · epoch 1" in text_of(story)


def test_a_replay_error_above_rounding_has_no_tick(story, record):
    story.add(record(1, **{"memory/replay_error": 3e-4}))
    assert "3.0e-04 ✗" in text_of(story)


def test_numbers_that_went_bad_are_shown_as_they_are(story, record):
    story.add(record(1, mean_return=math.nan, **{"loss/policy": math.nan, "gradient/norm": math.inf}))
    text = text_of(story)
    assert "return nan" in text
    assert "inf" in text


def test_an_environment_without_a_known_ceiling_has_no_line_for_it(plan, record):
    plan.env = replace(plan.env, memoryless_ceiling=None, mean_return_goal=None)
    story = Story(plan, clock=lambda: 0.0)
    story.add(record(1, mean_return=20.0))
    story.add(record(2, mean_return=195.5))
    text = text_of(story)
    assert "return 195.5" in text
    assert "without memory" not in text
    assert "╌" not in text


def test_the_title_says_how_it_ended(story, record):
    story.add(record(10))
    story.end("stopped")
    text = text_of(story)
    assert "first stopped" in text
    assert "left" not in text
