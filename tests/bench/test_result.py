"""Results: straight lines, bars, files and tables."""

import io
import json

import pytest
from rich.console import Console

from engram.bench.fit import fit_line
from engram.bench.race import Entry, Race
from engram.bench.result import Bar, Result, write
from engram.bench.table import show


def a_result() -> Result:
    measured = Entry("ours", 2, rate=10.0, ratio=1.0, best=True, phases={"learning": 0.5}, facts={"return": 480.0})
    race = Race("a race", "steps", "speed", "ours", [measured, Entry("theirs", 1, failed="could not be installed")])
    bars = [Bar("fast", 2.0, at_least=1.5), Bar("slow", 2.0, at_most=1.5), Bar("unknown", None, at_least=1)]
    return Result("peers", {"rounds": 1}, [race], [fit_line("rows", "ms", [1, 2, 4], [3, 5, 9])], bars)


def test_points_on_a_line_are_fitted_exactly() -> None:
    fit = fit_line("rows", "ms", [1, 2, 4], [3, 5, 9])
    assert (fit.slope, fit.intercept, fit.r2) == pytest.approx((2, 1, 1))
    assert fit.growth == pytest.approx(3 / 4)


def test_a_parabola_is_no_line() -> None:
    assert fit_line("x", "y", range(-4, 5), [x * x for x in range(-4, 5)]).r2 == pytest.approx(0, abs=1e-9)


def test_what_never_changes_is_a_level_line() -> None:
    fit = fit_line("epochs", "MB", [1, 2, 3], [7, 7, 7])
    assert (fit.slope, fit.r2) == (0, 1)


def test_a_bar_is_met_missed_or_not_measured() -> None:
    assert [bar.met for bar in a_result().bars] == [True, False, None]


def test_a_result_says_the_machine_and_the_day_and_is_plain_json() -> None:
    told = json.loads(json.dumps(a_result().to_json(), allow_nan=False))
    assert told["schema"] == 1
    assert {"cpu", "cores", "torch", "python", "load_average"} <= told["machine"].keys()
    assert told["races"][0]["entries"][1]["failed"] == "could not be installed"
    assert [bar["met"] for bar in told["bars"]] == [True, False, None]


def test_a_second_result_of_a_day_does_not_replace_the_first(tmp_path) -> None:
    result = a_result()
    paths = [write(result, tmp_path / "results") for _ in range(3)]
    day = result.date[:10]
    assert [path.name for path in paths] == [f"peers-{day}.json", f"peers-{day}-2.json", f"peers-{day}-3.json"]


def test_the_table_has_every_figure_and_every_reason() -> None:
    stream = io.StringIO()
    show(a_result(), Console(file=stream))
    text = stream.getvalue()
    for part in ("a race", "ours", "50%", "480", "theirs, 1 thread: could not be installed", "1.0000", "not met"):
        assert part in text
