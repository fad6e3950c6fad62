"""The root cause is a sentence that names the mechanism, not only the check that found it."""

from types import SimpleNamespace
from typing import Any

import pytest
from audit.broken.case import TINY
from audit.designs import wrong_episodes as episodes
from audit.designs import wrong_gradients as gradients
from audit.designs import wrong_learning as learning
from audit.designs import wrong_mechanisms as mechanisms
from audit.designs import wrong_memory as memory
from audit.designs import wrong_pasts as pasts
from audit.designs import wrong_sizes as sizes
from audit.designs import wrong_storage as storage
from audit.test_designs import SMALL, audit

from engram.audit.checks import CHECKS
from engram.audit.root_cause import FAULTS, root_causes

CAUSES: list[tuple[Any, str, str]] = [
    (memory.FlagsCancelOut, "boundary_acting", "memory is not cleared where dones and truncateds are both set"),
    (episodes.LearningIgnoresTruncation, "boundary_learning", "in learning, memory is not cleared at truncation"),
    (episodes.ClearsTheNextRow, "boundary_acting", "an episode start clears the memory of another row, not its own"),
    (episodes.LearningClearsEarly, "boundary_learning", "in learning, memory is cleared one step too early"),
    (memory.CriticsMemoryNeverCleared, "boundary_acting", "the value still reads memory from before"),
    (storage.KeyedBySliceStart, "row_isolation", "position in the batch, not by its environment id"),
    (memory.StatisticsOfTheBatch, "row_isolation", "rows are mixed by statistics over the batch"),
    (learning.RowsAndStepsSwapped, "row_isolation", "rows and steps are mixed up"),
    (learning.Tempered, "replay", "a temperature in one of the two"),
    (storage.HalfPrecisionStore, "replay", "memory is rounded when stored"),
    (mechanisms.HiddenAndCellStoredSwapped, "replay", "h and c are swapped when acting stores its memory"),
    (mechanisms.CellNeverCleared, "boundary_acting", "c is not cleared where an episode starts"),
    (mechanisms.FadesAtAStart, "boundary_acting", "memory is scaled down or mixed with the old one"),
    (mechanisms.CriticReadsBeforeTheStart, "boundary_acting", "the value still reads memory from before"),
    (mechanisms.HiddenDetachedBetweenSteps, "gradient_exact", "the gradient through h is cut between steps"),
    (mechanisms.HalvesTheGradient, "gradient_exact", "the recurrent gradient is scaled: 0.5 of the true one"),
    (mechanisms.DetachedInLargeBatches, "gradient_exact", "the gradient depends on the number of rows"),
    (mechanisms.CountsCalls, "row_isolation", "outputs depend on the number of calls"),
    (mechanisms.CountsStepsOfTheSegment, "replay", "outputs depend on the position in the segment"),
    (mechanisms.SkipsEverySecondStep, "replay", "learning skips steps"),
    (mechanisms.ClearsTheGivenState, "determinism", "writes into the state that it is given"),
    (storage.GivesItsOwnTensors, "memory_interface", "it is no copy"),
    (storage.CellNotStored, "replay", "a part of memory is not stored (after acting, c is zero)"),
    (gradients.WrongBackward, "gradient_exact", "the backward pass of WrongTanh is wrong"),
    (mechanisms.WindowKeepsItsLastPlace, "boundary_acting", "is not cleared at place 2 of 3"),
    (mechanisms.CentredInLargeBatches, "row_isolation", "in learning, rows are mixed by statistics over the batch"),
    (episodes.LearningKeepsTheCell, "boundary_learning", "in learning, c is not cleared where an episode starts"),
    (episodes.PositionsOfTheSegment, "boundary_learning", "outputs depend on the position in the segment"),
    (storage.CriticOverwritesTheActor, "replay", "the memory that the action distribution is computed from"),
    (sizes.IdsWrapAt64, "row_isolation", "environment ids collide: rows with ids of 64 and more"),
    (sizes.StoresNothingAfter50Steps, "row_isolation", "after 60 calls, memory is kept no longer"),
    (sizes.KeepsTheLastRows, "row_isolation", "a row loses its memory while many others act"),
    (storage.LayersViewedAsRows, "row_isolation", "a row's memory is stored as that of other rows"),
    (learning.AgesOffByOne, "replay", "learning reads the same memory differently than acting"),
    (storage.OneStateForTheBatch, "row_isolation", "position in the batch, not by its environment id"),
    (episodes.ClearsEverAfter, "replay", "and no longer at the steps after it"),
    (memory.LearnedStartOnlyWhenActing, "replay", "begin an episode from different initial states"),
    (learning.AllRowsDetachedAtAStart, "gradient_exact", "a start in one row detaches the memory of all rows"),
    (mechanisms.SwapsSquares, "replay", "where there are as many rows as steps"),
    (pasts.PairsShareAMemory, "row_isolation", "row 1 reads the memory of row 0"),
    (pasts.ReplaysFromRowZero, "replay", "in learning, every row begins the segment with the memory of row 0"),
    (pasts.ReplaysFromHalfTheMemory, "replay", "learning reads 0.5 times the memory stored for a segment"),
    (pasts.ReplaysFromTheMean, "replay", "from a memory that is computed from those of other rows"),
    (pasts.GoesBackToTheStart, "replay", "goes back, at step 4 of the segment, to the memory that the segment began"),
    (pasts.OneFlagForAllRows, "boundary_acting", "all rows are cleared by the flag of row 0"),
    (
        pasts.StartedRowsFirst,
        "boundary_acting",
        "row 0 and 2 others of 6: each has no memory at step 4",
    ),
    (pasts.ForgetsEveryTenthCall, "row_isolation", "the memory of all rows is cleared every 10 calls"),
    (pasts.CellClearedLate, "boundary_acting", "c is cleared one step too late"),
    (pasts.HookOnTheCell, "gradient_exact", "(register_hook() in "),
    (pasts.OneRowLearns, "gradient_exact", "it is wrong in rows 1, 2 and 3 of 4"),
    (mechanisms.HiddenDetachedBetweenSteps, "gradient_exact", "(detach() in tests/audit/designs/wrong_mechanisms.py"),
    (pasts.ClearedThroughData, "gradient_boundary", "cleared there outside the graph, by .data in "),
    (pasts.SeesTheNextStep, "causality", "depend on the observation one step later"),
    (pasts.LearnsOnFromTheLastSegment, "determinism", "the memory that the previous learning call ended with"),
    (pasts.KeepsASecondCopy, "memory_interface", "survives set_memory(), reset_memory() and reset_env_memory()"),
    (pasts.StoresLess, "replay", "memory is scaled when stored"),
    (pasts.StoresThreeDecimals, "replay", "every stored number has 3 decimal places"),
    (pasts.OddBatchesLoseTheirLastRow, "row_isolation", "in batches of 3, 5 rows, row 2 has no memory"),
    (pasts.StartsFromTheOthers, "boundary_acting", "from a memory that is computed from those of other rows"),
    (pasts.GrowthForgets, "row_isolation", "lose their memory when rows with larger ids act"),
    (pasts.StoresOnlyTheFirst64, "replay", "rows with environment ids of 64 and more have no memory"),
    (pasts.LearnsInBfloat16, "replay", "as with a lower precision in one of the two"),
    (pasts.ForgetsWithoutGradients, "modes", "compute something else with gradients than without"),
]


@pytest.mark.parametrize(("policy", "check", "cause"), CAUSES, ids=lambda each: getattr(each, "__name__", ""))
def test_a_cause_names_the_mechanism(policy: Any, check: str, cause: str) -> None:
    report = audit(policy, SMALL, only=[check])
    assert cause in report.causes[0].sentence
    assert cause in report.to_json()["causes"][0]["cause"]


def test_ids_that_collide_are_the_cause_of_rows_that_are_not_reset() -> None:
    report = audit(storage.IdsAsBytes, SMALL, only=["memory_interface", "replay"])
    assert [cause.root.name for cause in report.causes] == ["replay"]
    assert "environment ids collide" in report.causes[0].sentence


def test_a_nan_that_leaves_a_masked_window_is_a_note() -> None:
    (result,) = audit(mechanisms.MaskedWindow, TINY, only=["nan_at_start"]).results
    assert result.passed
    assert "until it leaves the window" in result.notes[0]


def test_every_check_has_a_sentence_for_its_fault() -> None:
    assert FAULTS.keys() == CHECKS.keys()


def test_memory_that_is_rounded_is_the_cause_of_outputs_that_depend_on_the_batch() -> None:
    findings = {
        "row_isolation": "rows are mixed where episodes start",
        "replay": "memory is rounded when stored (float16)",
    }
    failed = [SimpleNamespace(name=name, passed=False, finding="", cause=cause) for name, cause in findings.items()]
    (cause,) = root_causes(failed)
    assert cause.root.name == "replay"
    assert [each.name for each in cause.consequences] == ["row_isolation"]
