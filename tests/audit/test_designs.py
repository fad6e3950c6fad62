"""Designs of other kinds than our own: right ones pass, and wrong ones fail by the check that names the fault."""

from functools import partial
from typing import Any, NamedTuple

import pytest
from audit.broken.case import TINY
from audit.designs import right, right_rare, right_unusual
from audit.designs import wrong_calls as calls
from audit.designs import wrong_episodes as episodes
from audit.designs import wrong_gradients as gradients
from audit.designs import wrong_inputs as inputs
from audit.designs import wrong_learning as learning
from audit.designs import wrong_memory as memory
from audit.designs import wrong_sizes as sizes
from audit.designs import wrong_storage as storage
from support.playing import vector_env

from engram.audit import AuditReport, run_audit
from engram.audit.checks import CHECKS
from engram.audit.context import AuditSizes
from engram.audit.target import build, spec_of

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections")  # torch says so once on CPUs
SMALL = AuditSizes(rows=12, horizon=12, steps=60)
FULL = AuditSizes()
RIGHT = [*right_rare.RIGHT_RARE, *right.RIGHT, *right_unusual.RIGHT_UNUSUAL]


def audit(policy: type, sizes: AuditSizes, only: list[str] | None = None) -> AuditReport:
    spec = spec_of(vector_env())
    make = partial(build, policy, policy.__name__, spec, {})
    only = only or [name for name in CHECKS if name != "compile"]
    return run_audit(make, vector_env(), takes_options=True, sizes=sizes, only=only)


@pytest.mark.parametrize("policy", [*right_rare.RIGHT_RARE, *RIGHT[5::6]], ids=lambda policy: policy.__name__)
def test_right_designs_pass(policy: type) -> None:
    report = audit(policy, TINY)
    assert {result.name: result.finding for result in report.failures} == {}


class Wrong(NamedTuple):
    policy: Any
    root: str
    finding: str  # part of the root's
    sizes: AuditSizes = SMALL


WRONG = [
    Wrong(gradients.HiddenDetached, "gradient_exact", "a part of the memory is detached between steps"),
    Wrong(gradients.CellDetached, "gradient_exact", "a part of the memory is detached between steps"),
    Wrong(gradients.LowerLayerCut, "gradient_exact", "a part of the memory is detached between steps"),
    Wrong(gradients.UpperLayerCut, "gradient_exact", "a part of the memory is detached between steps"),
    Wrong(gradients.RecurrentGradientHalved, "gradient_exact", "scaled: 0.5 of the true one"),
    Wrong(gradients.RecurrentGradientSlightlySmaller, "gradient_exact", "scaled: 0.97 of the true one"),
    Wrong(gradients.RecurrentGradientReversed, "gradient_exact", "wrong sign"),
    Wrong(gradients.CutAtStep48, "horizon", "is cut before step 48", FULL),
    Wrong(gradients.CutAtStep5, "horizon", "is cut before step 5"),
    Wrong(gradients.CutInLongSegments, "horizon", "reaches 0 steps back", FULL),
    Wrong(gradients.CutBeforeTheLastStep, "horizon", "reaches 0 steps back"),
    Wrong(gradients.OnlyTheLastEightSteps, "horizon", "reaches 7 steps back"),
    Wrong(gradients.CriticsMemoryCut, "gradient_exact", "of its size"),
    Wrong(gradients.ClippedInside, "gradient_exact", "of its size"),
    Wrong(gradients.ClippedWithinAStep, "gradient_exact", "not larger in proportion"),
    Wrong(sizes.RowsShareFrom16, "replay", "rows or more", FULL),
    Wrong(sizes.LargeBatchesShifted, "replay", "with 16 rows or more", FULL),
    Wrong(sizes.IdsWrapAt64, "row_isolation", "do not act for"),
    Wrong(sizes.FarIdsAreOne, "replay", "environment ids of"),
    Wrong(sizes.TableTooSmallIsClamped, "replay", "environment ids of"),
    Wrong(sizes.LongSegmentsNotCleared, "replay", "in segments of 32 steps or more, where an episode starts", FULL),
    Wrong(sizes.Step48NotCleared, "replay", "at step 48", FULL),
    Wrong(sizes.StoresNothingAfter50Steps, "row_isolation", "do not act for"),
    Wrong(sizes.ClearsNothingAfter50Steps, "replay", "acting steps"),
    Wrong(sizes.LargeWeightsNotCleared, "replay", "weights 3 times as large"),
    Wrong(sizes.MemoryClampedWhenStored, "replay", "learning differs from acting: where a segment begins with memory"),
    Wrong(sizes.OneRowNotCleared, "boundary_learning", "in a minibatch of one row"),
    Wrong(sizes.OneStepFromNothing, "replay", "learning differs from acting"),
    Wrong(sizes.LastRowNotStoredInLargeBatches, "replay", "with 32 rows or more", FULL),
    Wrong(sizes.SwapsAfterALowerSlice, "row_isolation", ""),
    Wrong(sizes.SecondEpochStartsElsewhere, "determinism", "gives other outputs when repeated"),
    Wrong(sizes.FromId4096OneRow, "replay", "environment ids of 10000"),
    Wrong(sizes.OneStepNotCleared, "replay", "in segments of one step"),
    Wrong(episodes.FirstObservationMasked, "boundary_acting", "the first observation of an episode is ignored"),
    Wrong(memory.FlagsCancelOut, "boundary_acting", "dones and truncateds at once: memory is not cleared"),
    Wrong(memory.NaNSurvives, "nan_at_start", "multiplied, not replaced"),
    Wrong(memory.NaNSurvivesInTheCell, "nan_at_start", "multiplied, not replaced"),
    Wrong(memory.ClearedOneStepLate, "boundary_acting", "cleared too late"),
    Wrong(memory.SecondOfTwoStartsIgnored, "boundary_learning", "the second of two starts in a row"),
    Wrong(memory.FirstStepOfASegmentNotCleared, "boundary_learning", "starts at step 0 of 8"),
    Wrong(memory.LastStepOfASegmentNotCleared, "boundary_learning", "starts at the last step"),
    Wrong(memory.NoiseInTheMemory, "determinism", "draws random numbers by itself"),
    Wrong(memory.RandomStart, "determinism", "draws random numbers by itself"),
    Wrong(memory.NoiseOfNumpy, "determinism", "draws random numbers by itself"),
    Wrong(memory.LastHiddenKeptWithItsGraph, "detachment", "kept with a graph: last_hidden"),
    Wrong(memory.GlobalKeepsTheGraph, "detachment", "outside the module"),
    Wrong(memory.ClassKeepsTheGraph, "detachment", "outside the module"),
    Wrong(memory.StoredAttached, "detachment", "operations of the call before"),
    Wrong(memory.CellNotSaved, "memory_interface", "give other outputs"),
    Wrong(memory.MemoryAliased, "memory_interface", "it is no copy"),
    Wrong(memory.PositionsOnlyWhenLearning, "replay", "learning differs from acting"),
    Wrong(memory.PreviousActionOfNow, "replay", "learning differs from acting"),
    Wrong(memory.PreviousActionNotCleared, "boundary_acting", "only in part"),
    Wrong(memory.AttentionAcrossEpisodes, "boundary_acting", "not cleared at all"),
    Wrong(memory.FramesOfTheLastEpisode, "boundary_acting", "not cleared at all"),
    Wrong(memory.OneClockForAll, "row_isolation", ""),
    Wrong(memory.LearnedStartOnlyWhenActing, "replay", "where an episode starts inside a segment"),
    Wrong(memory.CriticsMemoryNeverCleared, "boundary_acting", "only in part"),
    Wrong(memory.ProjectedCellNotCleared, "boundary_acting", "only in part"),
    Wrong(memory.NeighboursMixed, "row_isolation", "change the outputs of row"),
    Wrong(memory.RowsSortedByLength, "row_isolation", ""),
    Wrong(memory.DecaysBetweenCalls, "replay", "learning differs from acting"),
    Wrong(memory.StatisticsOfTheBatch, "row_isolation", "change the outputs of row"),
    Wrong(memory.HistoryGrows, "graph_growth", "1 entries"),
    Wrong(storage.HalfPrecisionStore, "replay", "memory is rounded when stored"),
    Wrong(storage.CellNotStored, "replay", "learning differs from acting"),
    Wrong(storage.SlicesStoredFromZero, "row_isolation", ""),
    Wrong(storage.OffByOneInLaterSlices, "row_isolation", ""),
    Wrong(storage.KeyedBySliceStart, "row_isolation", "cut or ordered differently"),
    Wrong(storage.IdsAsBytes, "replay", "ids of 1024 and more"),
    Wrong(storage.GivesItsOwnTensors, "memory_interface", "it is no copy"),
    Wrong(storage.MemoryOfTheStepBefore, "memory_interface", ""),
    Wrong(storage.SetMemoryKeepsOtherRows, "memory_interface", "leaves row 2 as it was"),
    Wrong(storage.OneEnvironmentResetsAll, "memory_interface", ""),
    Wrong(storage.LearningForgets, "memory_after_learning", ""),
    Wrong(storage.StoreByStep, "graph_growth", "entries"),
    Wrong(storage.CriticOverwritesTheActor, "replay", "learning differs from acting"),
    Wrong(storage.LearnsFromTheLearnedStart, "replay", "where a segment begins with memory"),
    Wrong(storage.AddsTheLearnedStart, "replay", "the memory between steps differs"),
    Wrong(storage.CachedWeights, "replay", "learning differs from acting"),
    Wrong(storage.WindowOfRows, "row_isolation", ""),
    Wrong(storage.ChangesTheStateItIsGiven, "determinism", "writes into the state that it is given"),
    Wrong(storage.KeepsTheStateTwice, "determinism", "depends on earlier calls"),
    Wrong(episodes.OnlyWhenAllStart, "boundary_acting", "not cleared at all"),
    Wrong(episodes.LearningClearsLate, "boundary_learning", "one step too late"),
    Wrong(episodes.LearningClearsEarly, "boundary_learning", ""),
    Wrong(episodes.LearningIgnoresTruncation, "boundary_learning", "truncateds: memory is not cleared"),
    Wrong(episodes.FirstStartOnly, "boundary_learning", "the second of two starts in a row"),
    Wrong(episodes.ClearsEverAfter, "replay", "where an episode starts inside a segment"),
    Wrong(episodes.ClearsHalfTheUnits, "boundary_acting", "only in part"),
    Wrong(episodes.FadesInsteadOfClearing, "boundary_acting", "only in part"),
    Wrong(episodes.ClearsTheNextRow, "boundary_acting", "rows 2 and 5 are cleared"),
    Wrong(episodes.TakesItsNeighboursMemory, "row_isolation", "change the outputs of row"),
    Wrong(episodes.GreedyPreviousAction, "replay", "learning differs from acting"),
    Wrong(episodes.RemembersTheGreedyAction, "replay", "learning differs from acting"),
    Wrong(episodes.WindowOverTheSegment, "boundary_learning", "not cleared inside a segment"),
    Wrong(episodes.ClearsTheCellAfterTheFirst, "boundary_acting", "only in part"),
    Wrong(episodes.CleanRLWithoutDone, "boundary_acting", "not cleared at all"),
    Wrong(episodes.CleanRLClearsTheWrongRows, "boundary_acting", "mask is inverted"),
    Wrong(learning.OnlyTheLastInputLearns, "horizon", "reaches 0 steps back"),
    Wrong(learning.FirstHalfWithoutGradient, "horizon", "is cut before step 6"),
    Wrong(learning.CutWhereAnyRowStarts, "horizon", "a start in one row detaches the memory of all rows"),
    Wrong(learning.RecurrentWeightsFrozen, "gradient_exact", "cell.weight_hh"),
    Wrong(learning.GradientGrows, "gradient_exact", "scaled: 1.1"),
    Wrong(learning.GradientNormalised, "gradient_exact", "of its size"),
    Wrong(learning.EntropyWithoutGradient, "gradient_exact", "entropies have no gradient"),
    Wrong(learning.ValueFromStaleFeatures, "determinism", "depends on earlier calls"),
    Wrong(learning.Batchnormed, "modes", "which mixes rows in train()"),
    Wrong(learning.DropsOut, "determinism", "draws random numbers by itself"),
    Wrong(learning.NormaliserLearnsInForward, "determinism", "because calls change"),
    Wrong(learning.NormaliserInAPlainAttribute, "determinism", "depends on earlier calls"),
    Wrong(learning.ForgetsInEvaluation, "modes", "eval()"),
    Wrong(learning.Bidirectional, "causality", ""),
    Wrong(learning.ClampsLogitsWhenLearning, "replay", "with weights 3 times as large"),
    Wrong(inputs.RepeatedObservationSkipped, "replay", "where an observation is the same as the one before"),
    Wrong(inputs.ZeroObservationIsPadding, "replay", "where an observation is all zeros"),
    Wrong(inputs.LargeMemoryCleared, "replay", "when memory has grown 100 times as large"),
    Wrong(inputs.HookOnRecurrentWeights, "gradient_exact", "a hook changes the gradient of cell.weight_hh"),
    Wrong(inputs.EpsilonGreedy, "action_log_prob", "drawn actions are less likely"),
    Wrong(inputs.StoreOfTheClass, "determinism", "shared by all copies of the policy"),
    Wrong(inputs.OutputBufferReused, "determinism", "a buffer is reused"),
    Wrong(inputs.LoneRowsNotStored, "row_isolation", "cut or ordered differently"),
    Wrong(inputs.NewRowsBeginWithTheMean, "row_isolation", ""),
    Wrong(inputs.RowZeroNotReset, "memory_interface", "after reset_env_memory(0), row 0 still remembers"),
    Wrong(inputs.CutByTheBatch, "gradient_boundary", "it comes from other rows"),
    Wrong(gradients.WrongBackward, "gradient_exact", "even within one step"),
    Wrong(gradients.RecomputesFromTheLastCall, "gradient_exact", "recomputed from what the module keeps"),
    Wrong(gradients.CutEveryTenthCall, "gradient_exact", "depends on the number of calls"),
    Wrong(gradients.CutWhereSaturated, "gradient_exact", "with weights 5 times as large"),
    Wrong(calls.LayersInAList, "gradient_exact", "are no parameters of the module"),
    Wrong(calls.SeedsTheGenerator, "determinism", "torch's global random generator"),
    Wrong(calls.CachedByTheFirstRow, "determinism", "taken from a cache"),
    Wrong(calls.KeepsTheCallersBuffer, "determinism", "keeps its inputs without a copy"),
    Wrong(calls.ClampsItsWeights, "determinism", "changes weights"),
    Wrong(calls.TellsTheTime, "determinism", "the time of day"),
    Wrong(calls.SharperInEvaluation, "modes", "eval() with no_grad"),
    Wrong(calls.IdleRowsForgotten, "row_isolation", "do not act for"),
    Wrong(calls.DropsStepsWithGradients, "replay", "with gradients"),
    Wrong(calls.ClampedLogProbability, "action_log_prob", "not that of the action"),
    Wrong(calls.LargeObservationSkipped, "replay", "at its upper bound"),
    Wrong(calls.RowsFromThreeOnNotReset, "memory_interface", "after reset_env_memory(3), row 3 still remembers"),
    Wrong(calls.FirstFourStartsCleared, "boundary_acting", "rows 4 and 5 are not cleared"),
    Wrong(calls.EveryEighthEpisodeGoesOn, "replay", "where an episode starts"),
    Wrong(calls.NaNClearsAllRows, "nan_at_start", "in the memory of one row changes other rows"),
    Wrong(calls.LaterNaNSurvives, "nan_at_start", "that has been in memory for 2 steps"),
]
# Measured by gallery.py only.
MORE_WRONG = [
    Wrong(gradients.TruncatedEvery32, "gradient_exact", "before step 32", FULL),
    Wrong(sizes.ForgetsEvery100Steps, "replay", "acting", FULL),
    Wrong(storage.HashedIds, "replay", "rows or more", FULL),
    Wrong(storage.WideMinibatchesShareTheirStart, "replay", "rows or more", FULL),
    Wrong(episodes.EvenRowsOnly, "replay", "where an episode starts inside a segment"),
    Wrong(learning.LooksAhead, "causality", ""),
    Wrong(learning.LastOutputForAll, "causality", ""),
    Wrong(learning.RowsAndStepsSwapped, "row_isolation", "in learning"),
    Wrong(learning.ActionsOfTheNextStep, "action_log_prob", "not that of the action"),
    Wrong(learning.Tempered, "replay", "learning differs from acting"),
    Wrong(learning.ChunksOf16, "replay", "in segments of", FULL),
    Wrong(learning.ChunksOf16FromDetached, "horizon", "is cut before step", FULL),
    Wrong(learning.TwoStepsAtOnce, "replay", "in segments of", FULL),
    Wrong(learning.NeverRemembers, "memory_used", ""),
    Wrong(learning.ClipsValuesWhenLearning, "replay", "learning differs from acting"),
    Wrong(learning.SoftensInBigBatches, "replay", "learning differs from acting", FULL),
    Wrong(inputs.IdsAsHalf, "replay", "environment ids of 10000"),
    Wrong(inputs.AgeAsByte, "replay", "acting steps", FULL),
]


# Every mechanism by which a check finds and names a fault, once; gallery.py measures all designs.
SAMPLE = (
    gradients.HiddenDetached,
    gradients.RecurrentGradientHalved,
    gradients.CutAtStep5,
    gradients.ClippedWithinAStep,
    sizes.LargeBatchesShifted,
    sizes.FromId4096OneRow,
    sizes.LongSegmentsNotCleared,
    sizes.StoresNothingAfter50Steps,
    sizes.LargeWeightsNotCleared,
    sizes.OneRowNotCleared,
    sizes.OneStepNotCleared,
    sizes.SecondEpochStartsElsewhere,
    memory.FlagsCancelOut,
    memory.NaNSurvives,
    memory.ClearedOneStepLate,
    memory.SecondOfTwoStartsIgnored,
    memory.NoiseOfNumpy,
    memory.GlobalKeepsTheGraph,
    memory.MemoryAliased,
    memory.CriticsMemoryNeverCleared,
    memory.NeighboursMixed,
    memory.HistoryGrows,
    storage.HalfPrecisionStore,
    storage.KeyedBySliceStart,
    storage.LearningForgets,
    storage.SetMemoryKeepsOtherRows,
    storage.ChangesTheStateItIsGiven,
    episodes.FirstObservationMasked,
    episodes.LearningIgnoresTruncation,
    episodes.FirstStartOnly,
    episodes.CleanRLClearsTheWrongRows,
    learning.CutWhereAnyRowStarts,
    learning.RecurrentWeightsFrozen,
    learning.EntropyWithoutGradient,
    learning.NormaliserLearnsInForward,
    learning.Batchnormed,
    learning.Bidirectional,
    learning.ClampsLogitsWhenLearning,
    inputs.RepeatedObservationSkipped,
    inputs.ZeroObservationIsPadding,
    inputs.LargeMemoryCleared,
    inputs.HookOnRecurrentWeights,
    inputs.EpsilonGreedy,
    inputs.StoreOfTheClass,
    inputs.OutputBufferReused,
    inputs.RowZeroNotReset,
    gradients.WrongBackward,
    gradients.RecomputesFromTheLastCall,
    gradients.CutEveryTenthCall,
    gradients.CutWhereSaturated,
    *(case.policy for case in WRONG if case.policy.__module__ == calls.__name__),
)
ROOTS = (gradients.HiddenDetached, memory.FlagsCancelOut, memory.MemoryAliased, episodes.FirstStartOnly)


@pytest.mark.parametrize("case", [case for case in WRONG if case.policy in ROOTS], ids=lambda c: c.policy.__name__)
def test_the_root_cause_is_the_check_that_names_the_fault(case: Wrong) -> None:
    causes = audit(case.policy, case.sizes).causes
    assert [cause.root.name for cause in causes[:1]] == [case.root]
    assert case.finding in causes[0].root.finding


@pytest.mark.parametrize("case", [case for case in WRONG if case.policy in SAMPLE], ids=lambda c: c.policy.__name__)
def test_the_check_that_names_the_fault_finds_it(case: Wrong) -> None:
    (result,) = audit(case.policy, case.sizes, only=[case.root]).failures
    assert case.finding in result.finding
