"""The root cause is a sentence that names the mechanism, not only the check that found it."""

from typing import Any

import pytest
from audit.designs import wrong_episodes as episodes
from audit.designs import wrong_learning as learning
from audit.designs import wrong_memory as memory
from audit.designs import wrong_storage as storage
from audit.test_designs import SMALL, audit

from engram.audit.checks import CHECKS
from engram.audit.root_cause import FAULTS

CAUSES: list[tuple[Any, str, str]] = [
    (memory.FlagsCancelOut, "boundary_acting", "memory is not cleared where dones and truncateds are both set"),
    (episodes.LearningIgnoresTruncation, "boundary_learning", "in learning, memory is not cleared at truncation"),
    (episodes.ClearsTheNextRow, "boundary_acting", "an episode start clears the memory of another row, not its own"),
    (episodes.LearningClearsEarly, "boundary_learning", "in learning, memory is cleared one step too early"),
    (memory.CriticsMemoryNeverCleared, "boundary_acting", "is not cleared where an episode starts"),
    (storage.KeyedBySliceStart, "row_isolation", "position in the batch, not by its environment id"),
    (memory.StatisticsOfTheBatch, "row_isolation", "rows are mixed by statistics over the batch"),
    (learning.RowsAndStepsSwapped, "row_isolation", "rows and steps are mixed up"),
    (learning.Tempered, "replay", "a temperature in one of the two"),
    (storage.HalfPrecisionStore, "replay", "memory is rounded when stored"),
    (storage.GivesItsOwnTensors, "memory_interface", "it is no copy"),
]


@pytest.mark.parametrize(("policy", "check", "cause"), CAUSES, ids=lambda each: getattr(each, "__name__", ""))
def test_a_cause_names_the_mechanism(policy: Any, check: str, cause: str) -> None:
    report = audit(policy, SMALL, only=[check])
    assert cause in report.causes[0].sentence
    assert cause in report.to_json()["causes"][0]["cause"]


def test_every_check_has_a_sentence_for_its_fault() -> None:
    assert FAULTS.keys() == CHECKS.keys()
