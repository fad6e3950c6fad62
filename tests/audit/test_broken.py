"""Broken policies, one fault each: the right checks fail, and every other failure is a consequence of theirs."""

from functools import partial

import pytest
from audit.broken import calls, memory, seeds, subtle, wrapper
from audit.broken.case import Case

from engram.audit import run_audit
from engram.audit.checks import CHECKS
from engram.audit.context import QUICK

CASES = [*memory.CASES, *calls.CASES, *seeds.CASES, *subtle.CASES, *wrapper.CASES]
WITHOUT_COMPILING = [name for name in CHECKS if name != "compile"]  # which takes as long as all others together


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.policy.__name__)
def test_a_fault_is_caught_by_the_right_checks(case: Case) -> None:
    report = run_audit(partial(case.policy, case.env), case.env, takes_options=True, only=[*case.checks], sizes=QUICK)
    assert {result.name for result in report.failures} == case.checks
    assert any(case.said in result.finding for result in report.failures)
    for result in report.failures:
        assert result.finding, result.name
        assert result.effect, result.name
        assert result.fix, result.name
        assert case.policy.__name__ in result.where or "(" in result.where, result.name


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES[::12], ids=lambda case: case.policy.__name__)
def test_every_other_failure_is_a_consequence(case: Case) -> None:
    only = [*WITHOUT_COMPILING, *({"compile"} & case.checks)]
    report = run_audit(partial(case.policy, case.env), case.env, takes_options=True, only=only, sizes=QUICK)
    assert {cause.root.name for cause in report.causes} <= case.checks


def test_every_check_has_a_policy_that_fails_it() -> None:
    tested_elsewhere = {"gradient_exact", "nan_at_start"}
    assert set().union(*(case.checks for case in CASES)) | tested_elsewhere == set(CHECKS)
