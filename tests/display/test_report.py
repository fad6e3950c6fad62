"""The charts of a report, and its page in a real browser."""

import math
from pathlib import Path

import numpy as np
import pytest
from support import browser

from engram.display.report import ReportFacts, RunRow, charts, phase_fraction, report_page
from engram.display.report import _draw as draw_png
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
    assert phase_fraction(columns, "environment").mean == pytest.approx(np.full(5, 0.25))
    assert phase_fraction(columns, "evaluation").mean.tolist() == []


HEALTHY = {"verdict": "healthy", "summary": "Nothing found.", "findings": []}
FAULTY = {
    "verdict": "faults",
    "summary": "x",
    "findings": [{"name": "No reward ever seen", "evidence": "all 9", "meaning": "m", "advice": "a <b>bonus</b>"}],
}

CHECK = dict.fromkeys(("question", "finding", "effect", "where", "fix"), "")
AUDIT = [
    CHECK | {"name": "detach", "status": "pass", "question": "Is memory detached?"},
    CHECK | {"name": "rows", "status": "fail", "question": "Has each row its own?", "fix": "Give <b>each</b> its own."},
    CHECK | {"name": "compile", "status": "skip"},
]


def record(epoch: int) -> dict[str, float]:
    time = {"time/steps_per_second": 900.0, "time/environment_seconds": 0.2, "time/learning_seconds": 0.3}
    losses = {"loss/policy": -0.1, "loss/kl": 0.01, "loss/entropy": 1.0, "value/explained_variance": -30.0 + epoch}
    return {
        "epoch": epoch,
        "steps": 2048 * epoch,
        "return": math.log(epoch),
        "memory/replay_error": 0.0,
        **losses,
        **time,
    }


def row(name: str, group: int, **others) -> RunRow:
    row = RunRow(name, group, "finished", 2048, 2048, 0.5, 0.9, 3661.0, 900.0, 0.0, HEALTHY, [], [], {})
    return row._replace(**others)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """Of a run of 3,000 epochs and a short one."""
    runs = [row("<i>first", 0, memory=["It remembers."], links={"replay": "replay.html"})]
    runs.append(row("second", 1, diagnosis=FAULTY, audit=AUDIT))
    facts = ReportFacts(
        "2 runs",
        "fast on recall",
        ["<i>first", "second"],
        False,
        True,
        runs,
        0.25,
        1.0,
        {"seed": ["1", "2"]},
        {"a": "b"},
    )
    groups = [[Columns((record(n) for n in range(1, 3001)), 512)], [Columns(map(record, range(1, 20)))]]
    file = tmp_path_factory.mktemp("pages") / "report.html"
    file.write_text(report_page(facts, charts(groups)), encoding="utf-8")
    return file


def test_the_page_is_small(written):
    assert written.stat().st_size < 3_000_000


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_page_fits_and_its_charts_answer_to_pointer_and_keyboard(written, width, dark):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    with browser.opened(written, width, dark) as shown:
        assert browser.fits(shown)
        assert browser.text(shown, "runs").count("<i>first") == 1
        assert "a <b>bonus</b>" in browser.text(shown, "diagnosis")
        audit = browser.text(shown, "audit")
        assert "1 of 2 checks failed; 1 did not apply." in audit
        assert "Give <b>each</b> its own." in audit
        assert browser.text(shown, "differing") == "setting<i>firstsecondseed12"
        assert shown.find_element(By.LINK_TEXT, "replay").get_attribute("href").endswith("replay.html")
        chart = shown.find_element(By.CSS_SELECTOR, "[data-metric='return']")
        shown.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
        wait_for(
            shown, "return document.querySelectorAll(\"[data-metric='return'] .scatterlayer .trace\").length === 4"
        )
        ActionChains(shown).move_to_element(chart).perform()
        wait_for(shown, "return document.querySelectorAll('.hoverlayer .legend text').length > 0")
        shown.find_elements(By.CSS_SELECTOR, "#legend button")[0].click()
        wait_for(
            shown, "return document.querySelectorAll(\"[data-metric='return'] .scatterlayer .trace\").length === 1"
        )
        before = shown.find_element(By.ID, "theme").text
        shown.find_element(By.TAG_NAME, "body").send_keys("t")
        assert shown.find_element(By.ID, "theme").text != before


def test_zeros_are_drawn_at_the_bottom_of_their_axis(written):
    with browser.opened(written) as shown:
        plot = "document.querySelector(\"[data-metric='memory/replay_error']\")"
        shown.execute_script(f"{plot}.scrollIntoView()")
        wait_for(shown, f"return {plot}._fullLayout?.yaxis?.range")
        assert shown.execute_script(f"return {plot}._fullLayout.yaxis.range[0]") == 0


def test_zeros_are_drawn_at_the_bottom_of_pictures_for_papers():
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    (_, errors) = charts([[run(**{"memory/replay_error": 0.0})]])
    panel = Figure().subplots()
    draw_png(panel, errors, [""])
    assert panel.get_ylim()[0] == 0


def wait_for(shown, condition: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(shown, browser.WAIT_SECONDS).until(lambda browser: browser.execute_script(condition))
