"""The report: in the terminal, as JSON, and as a page."""

import json
import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch
from audit.broken.memory import ClearedAtTheFirstStepOnly, NothingStored
from audit.broken.wrapper import Small
from support.playing import vector_env

from engram.audit import AuditReport, run_audit
from engram.audit.context import QUICK
from engram.audit.html_report import bars, heatmap, page
from engram.audit.result import CheckResult
from engram.audit.root_cause import root_causes
from engram.audit.text_report import as_json, as_text, conclusion, show, show_summary

ONLY = ["memory_used", "boundary_acting", "boundary_learning", "horizon", "replay", "row_isolation", "graph_growth"]


@pytest.fixture(scope="module")
def good() -> AuditReport:
    return run_audit(partial(Small, vector_env()), vector_env(), only=ONLY, name="good", sizes=QUICK)


@pytest.fixture(scope="module")
def bad() -> AuditReport:
    make = partial(ClearedAtTheFirstStepOnly, vector_env())
    return run_audit(make, vector_env(), only=ONLY, name="<bad> & worse", sizes=QUICK)


def test_in_a_notebook_too_the_text_is_returned_and_nothing_is_shown(
    good: AuditReport, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = as_text(good)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert as_text(good) == expected
    assert capsys.readouterr().out == ""


def test_a_failure_tells_what_so_what_where_and_the_fix(bad: AuditReport) -> None:
    text = as_text(bad, width=200)
    assert "FAIL  boundary_learning" in text
    for result in bad.failures:
        for part in (result.finding, result.effect, result.fix):
            assert part[:40] in text
    assert "2 of 7 checks fail" in text


def test_a_pass_shows_number_and_bound(good: AuditReport) -> None:
    text = as_text(good, width=200)
    assert re.search(r"pass  horizon +11 >= 11", text)
    assert re.search(r"pass  replay +\S+e-\d+ <= \S+  ", text)
    assert "All 7 checks hold" in text


@pytest.mark.parametrize(
    ("statuses", "said"),
    [
        (["pass"], "The one check holds. 0.0 s"),
        (["pass", "pass", "skip"], "All 2 checks hold (1 does not apply). 0.0 s"),
        (["pass", "skip", "skip"], "The one check holds (2 do not apply). 0.0 s"),
        (["fail"], "1 of 1 check fails. 0.0 s"),
        (["fail", "pass"], "1 of 2 checks fails. 0.0 s"),
        (["fail", "fail"], "2 of 2 checks fail. 0.0 s"),
    ],
)
def test_the_conclusion_counts_in_singular_and_plural(good: AuditReport, statuses: list, said: str) -> None:
    results = tuple(replace(good.results[0], status=status, seconds=0.0) for status in statuses)
    assert conclusion(replace(good, results=results)) == said


def test_what_does_not_apply_says_why() -> None:
    report = run_audit(
        partial(NothingStored, vector_env()), vector_env(), only=["boundary_acting", "observation_tokens"]
    )
    assert [result.status for result in report.results] == ["skip", "skip"]
    assert "see memory_used" in report.results[0].finding


def test_several_targets_get_a_line_each_and_only_failures_are_told_in_full(good, bad, capsys) -> None:
    for report in (good, bad):
        show(report, brief=True)
    show_summary([good, bad])
    said = capsys.readouterr().out
    assert said.startswith("pass  good: Small")
    assert "boundary_learning: When learning" in said
    assert "1 of 2 fail" in said


def test_json_is_json_whatever_was_measured(good: AuditReport, bad: AuditReport) -> None:
    told = json.loads(json.dumps(as_json([bad]), allow_nan=False))
    assert told["passed"] is False
    replay = next(check for check in told["checks"] if check["name"] == "replay")
    assert replay["status"] == "fail"
    assert len(replay["evidence"]["difference"]) == 8
    assert {"question", "finding", "effect", "where", "fix", "bound"} <= replay.keys()
    assert [each["passed"] for each in as_json([good, bad])] == [True, False]


def test_json_has_no_infinity() -> None:
    odd = CheckResult(
        "x", "?", "fail", float("inf"), 0.0, False, "", "", "", "", evidence={"a": torch.tensor([torch.nan])}
    )
    assert json.loads(json.dumps(odd.to_json(), allow_nan=False))["measured"] == "inf"


def test_the_page_needs_nothing_else_and_shows_the_evidence(good: AuditReport, bad: AuditReport) -> None:
    text = page([bad, good])
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in text
    assert "&lt;bad&gt; &amp; worse" in text
    assert "<bad>" not in text
    pictures = re.findall(r"<svg.*?</svg>", text)
    assert len(pictures) >= 8
    for picture in pictures:
        ElementTree.fromstring(picture)


def test_pictures_mark_what_is_beyond_the_bound() -> None:
    values = torch.tensor([[0.0, 1e-6], [0.5, torch.inf]])
    picture = heatmap(values, 1e-5, "row", "step")
    assert picture.count('class="within"') == 2
    assert picture.count('class="beyond"') == 2
    assert bars([0.0, 0.1, 1.0], "gradient").count('class="gone"') == 1


@pytest.mark.parametrize(
    ("name", "replay", "root"),
    [
        ("action_log_prob", "learning differs from acting", "action_log_prob"),
        ("memory_interface", "learning differs from acting", "memory_interface"),
        ("memory_interface", "acting differs from a row alone; learning differs from acting", "replay"),
    ],
)
def test_a_fault_that_makes_learning_differ_is_the_cause_of_a_wrong_replay(name: str, replay: str, root: str) -> None:
    findings = {"replay": replay, "boundary_learning": "", name: ""}
    failed = [SimpleNamespace(name=each, passed=False, finding=text, cause="") for each, text in findings.items()]
    assert root_causes(failed)[0].root.name == root
