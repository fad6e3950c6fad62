"""`engram audit --loop`: a training loop is audited by what it hands to the policy."""

from pathlib import Path

import pytest
from audit import loops

from engram.audit.loop import audit_loop
from engram.audit.result import CannotAuditError
from engram.cli.main import main


@pytest.mark.parametrize("loop", [loops.right, loops.sequences])
def test_a_right_loop_passes(loop) -> None:
    report = audit_loop(loop, "loop")
    assert {result.name: result.finding for result in report.failures} == {}


@pytest.mark.parametrize(
    ("loop", "root", "finding"),
    [
        (loops.ZeroStart, "loop_start_state", "learned from a zero state"),
        (loops.OneStepLate, "loop_start_state", "one step late"),
        (loops.OneStepLateAtStarts, "loop_start_state", "one step late"),
        (loops.StartsNotPassed, "loop_starts", "an episode start is not passed to learning"),
        (loops.NeverCleared, "loop_acting", "memory is not cleared when an episode starts"),
        (loops.TruncationForgotten, "loop_acting", "memory is not cleared when an episode starts after truncation"),
        (loops.DonesOneStepEarly, "loop_starts", "each episode start is given one step too early"),
        (loops.DonesOneStepLate, "loop_starts", "each episode start is given one step too late"),
        (loops.MasksForStarts, "loop_starts", "masks are given in place of episode starts"),
        (loops.AllRowsZeroed, "loop_acting", "the states of all rows are zeroed where one of them starts an episode"),
        (loops.NextObservationStored, "loop_order", "each observation is learned with the start and the state of"),
        (loops.ZeroedBeforeRollouts, "loop_acting", "zeroed inside episodes at steps 8, 16, 24"),
        (loops.StateOfTheBootstrapKept, "loop_acting", "memory moves on twice for one observation"),
        (loops.StateOfTheEnd, "loop_start_state", "the state that its row had 8 steps later"),
        (loops.RowsFirst, "loop_order", "rows and steps are mixed"),
    ],
)
def test_a_wrong_loop_is_told_its_fault(loop, root: str, finding: str) -> None:
    cause = audit_loop(loop(), "loop").causes[0]
    assert cause.root.name == root
    assert finding in cause.root.finding
    assert finding in cause.sentence


def test_a_loop_that_never_learns_or_takes_no_policy_cannot_be_audited() -> None:
    with pytest.raises(CannotAuditError, match="never learned from what it played"):
        audit_loop(lambda env, policy: None, "idle")
    with pytest.raises(CannotAuditError, match="must take an environment and a policy"):
        audit_loop(lambda env: None, "odd")


def test_loops_on_the_command_line(capsys) -> None:
    file = Path(loops.__file__)
    assert main(["audit", "--loop", f"{file}:right"]) == 0
    assert main(["audit", "--loop", f"{file}:zero_start"]) == 1
    assert "learned from a zero state" in " ".join(capsys.readouterr().out.split())
