import numpy as np
import pytest

from engram.display.report_charts import charts, phase_share
from engram.stored.metrics import Columns


def run(offset: float = 0.0, epochs: int = 5, **others: float) -> Columns:
    return Columns({"epoch": n, "steps": 100 * n, "return": n + offset, **others} for n in range(1, epochs + 1))


def test_runs_of_one_group_are_a_mean_with_a_band_from_lowest_to_highest():
    (chart,) = charts([[run(0.0), run(2.0)]])
    (curve,) = chart.curves
    assert curve.mean.tolist() == [2, 3, 4, 5, 6]
    assert curve.low.tolist() == [1, 2, 3, 4, 5]
    assert curve.high.tolist() == [3, 4, 5, 6, 7]


def test_a_group_is_compared_only_where_all_its_runs_have_values():
    (chart,) = charts([[run(epochs=5), run(epochs=3)]])
    assert chart.curves[0].steps.tolist() == [100, 200, 300]


def test_each_group_has_a_curve_of_its_own():
    (chart,) = charts([[run()], [run(1.0)]])
    assert [curve.group for curve in chart.curves] == [0, 1]


def test_the_environments_statistics_and_schedules_have_charts():
    found = charts([[run(**{"episode/correct": 0.5, "schedule/optimizer.learning_rate": 0.1, "loss/kl": 0.2})]])
    assert [(chart.section, chart.title) for chart in found] == [
        ("Learning", "Return, mean of the last 200 episodes"),
        ("Losses", "KL divergence from the rollout policy"),
        ("Losses", "optimizer.learning_rate"),
        ("Episodes", "correct"),
    ]


def test_a_logarithmic_axis_needs_positive_values():
    assert [chart.logarithmic for chart in charts([[run(**{"loss/kl": 0.1})]])] == [False, True]
    assert [chart.logarithmic for chart in charts([[run(**{"loss/kl": -0.1})]])] == [False, False]


def test_phases_are_shares_of_the_measured_time():
    columns = run(**{"time/environment_seconds": 1.0, "time/learning_seconds": 3.0})
    assert phase_share(columns, "environment").mean == pytest.approx(np.full(5, 0.25))
    assert phase_share(columns, "evaluation").mean.tolist() == []
