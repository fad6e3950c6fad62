"""Results: linear fits, thresholds, files and tables."""

import io
import json

import pytest
from rich.console import Console

from engram.bench.race import Entry, Race
from engram.bench.result import BenchResult, Threshold, default_path, fit_line, show, write


def a_result() -> BenchResult:
    measured = Entry("ours", 2, rate=10.0, ratio=1.0, best=True, phases={"learning": 0.5}, facts={"return": 480.0})
    race = Race("a race", "steps", "speed", "ours", [measured, Entry("theirs", 1, failed="could not be installed")])
    thresholds = [
        Threshold("fast", 2.0, at_least=1.5),
        Threshold("slow", 2.0, at_most=1.5),
        Threshold("unknown", None, at_least=1),
    ]
    return BenchResult("peers", {"rounds": 1}, [race], [fit_line("rows", "ms", [1, 2, 4], [3, 5, 9])], thresholds)


def test_points_on_a_line_are_fitted_exactly() -> None:
    fit = fit_line("rows", "ms", [1, 2, 4], [3, 5, 9])
    assert (fit.slope, fit.intercept, fit.r2) == pytest.approx((2, 1, 1))
    assert fit.growth == pytest.approx(3 / 4)


def test_a_parabola_does_not_fit_a_line() -> None:
    assert fit_line("x", "y", range(-4, 5), [x * x for x in range(-4, 5)]).r2 == pytest.approx(0, abs=1e-9)


def test_constant_points_have_slope_zero_and_are_fully_explained() -> None:
    fit = fit_line("epochs", "MB", [1, 2, 3], [7, 7, 7])
    assert (fit.slope, fit.r2) == (0, 1)


def test_a_threshold_is_met_missed_or_not_measured() -> None:
    assert [threshold.met for threshold in a_result().thresholds] == [True, False, None]


def test_a_result_is_plain_json_with_the_machine_and_the_schema() -> None:
    content = json.loads(json.dumps(a_result().to_json(), allow_nan=False))
    assert content["schema"] == 1
    assert {"cpu", "cores", "torch", "python", "load_average"} <= content["machine"].keys()
    assert content["races"][0]["entries"][1]["failed"] == "could not be installed"
    assert [threshold["met"] for threshold in content["thresholds"]] == [True, False, None]


def test_a_file_is_named_by_the_benchmark_and_the_moment() -> None:
    result = a_result()
    result.date = "2026-05-01T15:30:12+02:00"
    assert str(default_path(result)) == "bench-results/peers-2026-05-01-153012.json"


def test_a_written_result_can_be_read_back(tmp_path) -> None:
    path = tmp_path / "results" / "peers.json"
    write(a_result().to_json(), path)
    assert json.loads(path.read_text())["verb"] == "peers"


def test_the_table_shows_every_figure_and_every_failure() -> None:
    stream = io.StringIO()
    show(a_result(), Console(file=stream))
    text = stream.getvalue()
    for part in ("a race", "ours", "50%", "480", "theirs, 1 thread: could not be installed", "1.0000", "not met"):
        assert part in text
