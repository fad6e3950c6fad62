"""The chart of returns, compared with charts drawn by hand."""

import numpy as np
from gymnasium import spaces

from engram.display.chart import Scale, chart, labels
from engram.display.progress import CURVE_POINTS, ReturnCurve
from engram.env.parts import box
from engram.env.spec import EnvSpec


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
