"""The panel shows all metrics at common terminal sizes and can be drawn at any size; its chart is compared with charts
drawn by hand."""

import io
import math
from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces
from rich.console import Console

from engram.display.panel import Scale, chart, labels, run_panel
from engram.display.progress import CURVE_POINTS, ReturnCurve, RunProgress
from engram.env.parts import box
from engram.env.spec import EnvSpec


def text_of(progress: RunProgress, width: int = 80, height: int = 24) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, record=True)
    console.print(run_panel(progress, width, height))
    return console.export_text()


@pytest.fixture
def progress(plan) -> RunProgress:
    return RunProgress(plan, clock=lambda: 0.0)


@pytest.mark.parametrize("width", [80, 120])
def test_all_metrics_are_shown(progress, record, width):
    for epoch in range(1, 151):
        progress.add(record(epoch, mean_return=epoch / 200))
    text = text_of(progress, width)
    for shown in (
        *("first", "fast on tmaze", "1,234,567 parameters", "cpu", "64 environments", "2 workers"),
        *("61%", "614,400 of 1,000,000 steps", "epoch 150", "1:15 elapsed", "0:47 left"),
        *("8,192 steps/s", "environment 40%", "inference 20%", "learning 30%", "other 10%"),
        *(
            "return 0.75 · best 0.75 at 614,400 steps · without memory at most 0.45",
            "1.00 at best",
            "0.45 without memory",
        ),
        *("12.30", "-0.0123", "0.0034", "1.21", "0.0031", "8%", "0.87", "0.421", "2.4e-07 ✓", "4.21", "812 MB"),
    ):
        assert shown in text


def test_learning_rate_checkpoint_and_the_environments_own_statistics_are_shown(progress, record):
    own = {"episode/hearts_made": 2.5, "episode/a very long statistic of the environment": 3.25}
    progress.add(record(7, checkpoint=5, **{"schedule/optimizer.learning_rate": 0.00125, **own}))
    text = text_of(progress)
    for shown in ("learning rate", "0.0013", "epoch 5", "hearts made", "2.50", "a very long statis… 3.25"):
        assert shown in text
    assert len(text.splitlines()) < 24


def test_before_the_first_checkpoint_there_is_none(progress, record):
    progress.add(record(1, checkpoint=0))
    assert "none yet" in text_of(progress)


def test_the_best_return_stays_when_the_return_falls(progress, record):
    for epoch, value in ((1, 0.2), (2, 0.8), (3, 0.4)):
        progress.add(record(epoch, mean_return=value))
    assert "return 0.40 · best 0.80 at 8,192 steps" in text_of(progress)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (100, 20), (60, 30)])
def test_the_panel_and_the_cursor_below_it_always_fit_the_terminal(progress, record, width, height):
    heights = [len(text_of(progress, width, height).splitlines())]
    for epoch in (1, 2, 245):
        progress.add(record(epoch))
        heights.append(len(text_of(progress, width, height).splitlines()))
    assert max(heights) < height
    assert width < 80 or len(set(heights)) == 1


@pytest.mark.parametrize("width", [1, 2, 5, 12, 30, 47, 200])
@pytest.mark.parametrize("height", [1, 5, 12, 100])
def test_the_panel_can_be_drawn_at_any_size(progress, record, width, height):
    progress.add(record(1))
    progress.add(record(2))
    assert all(len(line) <= width for line in text_of(progress, width, height).splitlines())


def test_before_the_first_epoch_the_panel_shows_the_plan(progress):
    text = text_of(progress)
    assert "0 of 1,000,000 steps · in the first epoch" in text
    assert "no episode has ended yet" in text


def test_missing_metrics_are_dashes(progress):
    progress.add({"epoch": 1, "steps": 4096, "return": None})
    assert "4,096 of 1,000,000 steps · epoch 1" in text_of(progress)


def test_a_replay_error_above_rounding_has_no_tick(progress, record):
    progress.add(record(1, **{"memory/replay_error": 3e-4}))
    assert "3.0e-04 ✗" in text_of(progress)


def test_nan_and_infinity_are_shown(progress, record):
    progress.add(record(1, mean_return=math.nan, **{"loss/policy": math.nan, "gradient/norm": math.inf}))
    text = text_of(progress)
    assert "return nan" in text
    assert "inf" in text


def test_an_environment_without_a_known_ceiling_has_no_line_for_it(plan, record):
    plan.env = replace(plan.env, memoryless_ceiling=None, mean_return_goal=None)
    progress = RunProgress(plan, clock=lambda: 0.0)
    progress.add(record(1, mean_return=20.0))
    progress.add(record(2, mean_return=195.5))
    text = text_of(progress)
    assert "return 195.5" in text
    assert "without memory" not in text
    assert "╌" not in text


def test_the_title_says_that_a_run_was_stopped(progress, record):
    progress.add(record(10))
    progress.end("stopped")
    text = text_of(progress)
    assert "first stopped" in text
    assert "left" not in text


def curve_of(*values: float) -> ReturnCurve:
    curve = ReturnCurve()
    for epoch, value in enumerate(values):
        curve.add(100 * epoch, value)
    return curve


def marked(ceiling: float | None = None, goal: float | None = None) -> EnvSpec:
    vector, actions = box((1,), np.dtype(np.float32)), spaces.Discrete(2)
    return EnvSpec("test", vector, actions, "vector", memoryless_ceiling=ceiling, mean_return_goal=goal)


def drawn(curve: ReturnCurve, width: int, rows: int, env: EnvSpec | None = None) -> list[str]:
    return [line.plain for line in chart(curve, Scale.of(curve, env or marked()), width, rows)]


def test_a_rising_curve_is_a_staircase():
    assert drawn(curve_of(0, 1, 2, 3, 4, 5, 6, 7, 8), 9, 1) == ["▁▁▂▃▄▅▆▇█"]
    assert drawn(curve_of(0, 1, 2, 3, 4), 5, 2) == ["   ▄█", "▁▄███"]


def test_few_points_are_interpolated_and_many_are_thinned():
    assert drawn(curve_of(0, 8), 9, 1) == ["▁▁▂▃▄▅▆▇█"]
    assert drawn(curve_of(*range(801)), 9, 1) == ["▁▁▂▃▄▅▆▇█"]


def test_the_ceiling_is_a_line_behind_the_columns():
    assert drawn(curve_of(0, 0, 1), 5, 3, marked(0.5, 1.0)) == ["    █", "╌╌╌▄█", "▁▁▁██"]


def test_columns_above_the_memory_threshold_have_another_colour():
    curve = curve_of(0.25, 0.55, 0.75)
    (line,) = chart(curve, Scale.of(curve, marked(0.5, 1.0)), 3, 1)
    assert [(span.start, span.end, span.style) for span in line.spans] == [(0, 2, "cyan"), (2, 3, "green")]


def test_an_empty_curve_and_a_single_value_can_be_drawn():
    assert drawn(curve_of(), 4, 2) == ["    ", "    "]
    assert drawn(curve_of(-3.0), 4, 1) == ["▁   "]
    assert drawn(curve_of(5, 5, 5), 3, 1) == ["▁▁▁"]


def test_labels_stand_beside_the_values_they_name():
    scale = Scale.of(curve_of(0.1), marked(0.5, 1.0))
    assert [label.plain for label in labels(scale, 5)] == ["1.00 at best", "", "0.50 without memory", "", "0.00"]


def test_a_curve_spans_the_whole_run_with_a_bounded_number_of_points():
    curve = curve_of(*range(20 * CURVE_POINTS))
    assert len(curve.steps) == len(curve.values) <= CURVE_POINTS
    assert (curve.values[0], curve.values[-1]) == (0, 20 * CURVE_POINTS - 1)
