"""A rehearsal: acting, learning and a reference played row by row, at given sizes."""

# B rows, S steps

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engram.audit.adapters.base import PolicyAdapter, PolicyOutput, Segment
from engram.audit.checks.gradient_health import train_briefly
from engram.audit.context import AuditContext
from engram.audit.difference import abs_difference, max_difference, tolerance
from engram.audit.scenario import PlayedRollout, Scenario, at_bounds, error_note, play, shuffled_slices, whole_batches
from engram.audit.weights import jitter_weights, scale_outputs, scale_weights

AMPLIFIED = 100  # up to this many times the bound may be rounding, in a network that amplifies it
ROUNDINGS = 3  # a network rounds several times in a row
LARGE_OUTPUTS = 10.0  # with larger weights, a further factor on output layers: a trained policy is more certain
FEW_ROWS = 8  # rows of a minibatch that leaves out others
Kind = str  # the kind of fault. "acting": differs from the reference; "learning": differs from acting that is right


class Rehearsal(NamedTuple):
    """The sizes and conditions of a rehearsal. The defaults are the simplest."""

    rows: int = 2
    horizon: int = 2  # steps of a segment
    segments: int = 1  # per rollout
    rollouts: int = 1
    warmup: int = 0  # acting steps before the first segment, which are not learned from
    ends: float = 0.0  # chance of an episode end, per step; every row has at least one
    both_flags: bool = False  # some ends set dones and truncateds
    slices: bool = False  # batches arrive in uneven slices, out of order
    far_ids: tuple[int, ...] = ()  # blocks of rows begin at these ids too
    minibatches: str = "all"  # or "some": rows in another order; or "one": one row each
    repeats: int = 1  # how often each segment is learned from
    weights: float = 1.0  # factor
    updates: int = 0  # before the rehearsal
    memory: float = 1.0  # factor on the memory that the rehearsal begins with
    repeated: bool = False  # many observations equal those of the step before
    zeros: bool = False  # many observations are all zeros, where the environment can give them
    bounds: bool = False  # many observations are at their upper bound, or ten times as large where there is none
    gradients: bool = False  # learning has gradients: without, it takes less memory


class Outcome(NamedTuple):
    """Differences [B, S]: of acting from the reference, and of learning from acting."""

    acting: Tensor
    learning: Tensor
    bound: float

    def wrong(self, kind: Kind) -> Tensor:
        """[B, S] of booleans. Learning is compared with acting, so it is judged only if acting is right."""
        acting = self.acting > self.bound
        return acting if kind == "acting" else (self.learning > self.bound) & ~acting.any()

    def measured(self, kind: Kind) -> float:
        return float((self.acting if kind == "acting" else self.learning).max())


@torch.no_grad()
def rehearse(audit: AuditContext, case: Rehearsal, kind: Kind = "") -> Outcome:
    """Play and learn, and compare. With a `kind`, only the part that can show this kind of fault."""
    adapter = prepared(audit, case)
    learner, ids = adapter.copy(), ids_of(case)
    compared = [] if audit.mode_matters or case.memory != 1.0 else _sampled_rows(case)
    references = {row: adapter.copy() for row in compared}
    if case.memory != 1.0:
        play(adapter, audit.scenario(79, rows=case.rows, steps=4), ids=ids)
        adapter.change_memory(ids, lambda part: part * case.memory if part.is_floating_point() else part)
    acting, learning, bound = [], [], 0.0
    for rollout in range(case.rollouts):
        if rollout or case.memory == 1.0:
            adapter.begin_rollout()
        if adapter.resets_between_rollouts:
            for reference in references.values():
                reference.reset()
        scenario = scenario_of(audit, case, rollout)
        first = 0
        while first < scenario.steps:
            warming = bool(case.warmup) and first == 0 and rollout == 0
            steps = case.warmup if warming else case.horizon
            part = scenario.part(first, first + steps)
            begins_empty = first == 0 and case.memory == 1.0 and (rollout == 0 or adapter.resets_between_rollouts)
            memory = None if begins_empty else adapter.memory_of(ids)
            played = play(adapter, part, order_of(audit, case, part, rollout), ids)
            bound = max(bound, tolerance(played.log_prob, played.value))
            expected = {row: reference_outputs(reference, part, row) for row, reference in references.items()}
            acting.append(_acting_error(played, expected))
            skipped = warming or kind == "acting"
            learning.append(
                torch.zeros_like(played.value) if skipped else _learning_error(learner, played, memory, case)
            )
            first += steps
    outcome = Outcome(torch.cat(acting, 1), torch.cat(learning, 1), bound)
    if any(bound < outcome.measured(each) < AMPLIFIED * bound for each in ("acting", "learning")):
        outcome = outcome._replace(bound=max(bound, _rounding(audit, case, learner)))
    return outcome


def _rounding(audit: AuditContext, case: Rehearsal, original: PolicyAdapter) -> float:
    """The largest difference that rounding alone may cause, measured by changing the weights by about one rounding.

    Large weights amplify rounding, and sums over batches of different sizes are rounded differently.
    """
    scenario, outputs = scenario_of(audit, case, 0), []
    for jittered in (False, True):
        adapter = original.copy()
        adapter.reset()
        if jittered:
            jitter_weights(adapter.policy, audit.generator(181))
        played = play(adapter, scenario, ids=ids_of(case))
        outputs.append(torch.cat([played.value.flatten(), played.numbers.flatten()]))
    return ROUNDINGS * max_difference(*outputs)


def prepared(audit: AuditContext, case: Rehearsal) -> PolicyAdapter:
    adapter = audit.adapter(own_mode=True)
    if case.updates or case.weights != 1.0:  # so that a copy of the weights that acting keeps is out of date
        play(adapter, audit.scenario(78, rows=case.rows, steps=2), ids=ids_of(case))
        adapter.reset()
    if case.updates:
        with torch.enable_grad():
            train_briefly(audit, adapter, case.updates, 0.01, lambda _: None)
        adapter = adapter.copy()
        adapter.reset()
    if case.weights != 1.0:
        scale_weights(adapter, case.weights)
        scale_outputs(adapter, LARGE_OUTPUTS)
    return adapter


def ids_of(case: Rehearsal) -> list[int]:
    if not case.far_ids:
        return list(range(case.rows))
    blocks = (0, *case.far_ids)
    size = max(case.rows // len(blocks), 1)
    return [first + i for first in blocks for i in range(size)][: case.rows]


def _sampled_rows(case: Rehearsal) -> list[int]:
    """The rows compared with a reference: first and last, or of two rows only the last."""
    return sorted({0, case.rows - 1}) if case.rows > 2 else [case.rows - 1]


def scenario_of(audit: AuditContext, case: Rehearsal, rollout: int) -> Scenario:
    steps = case.horizon * case.segments + (case.warmup if rollout == 0 else 0)
    scenario = audit.scenario(80 + rollout, rows=case.rows, steps=steps, end_chance=case.ends)
    if case.repeated or case.zeros or case.bounds:
        scenario = _with_plain_observations(audit, case, scenario)
    if not case.ends:
        return scenario
    generator = audit.generator(180 + rollout)
    dones, truncateds = scenario.dones.clone(), scenario.truncateds.clone()
    for row in range(case.rows):  # every row has an end in what is learned, and some have two in a row
        step = steps - 1 - int(torch.randint(max(min(case.horizon, steps) - 1, 1), (1,), generator=generator))
        dones[row, step] |= row % 2 == 0
        truncateds[row, step] |= row % 2 == 1
        if row % 3 == 0 and step + 1 < steps:
            dones[row, step + 1] = True
    if case.both_flags:
        both = (dones | truncateds) & (torch.rand(dones.shape, generator=generator) < 0.4)
        dones, truncateds = dones | both, truncateds | both
    else:
        truncateds &= ~dones
    return replace(scenario, dones=dones, truncateds=truncateds)


def _with_plain_observations(audit: AuditContext, case: Rehearsal, scenario: Scenario) -> Scenario:
    """Replaces three of four observations by ones that never occur at random: repeated, zeros, or the upper bound."""
    observations = scenario.observations.clone()
    for step in range(1, scenario.steps):
        if case.repeated and step % 4 == 1:
            observations[:, step] = observations[:, step - 1]
        if case.zeros and step % 4 == 3 and _has_zeros(audit):
            observations[:, step] = 0
        if case.bounds and step % 4 == 2 and audit.spec.observation_kind != "tokens":
            observations[:, step] = at_bounds(audit.spec, observations[:, step])
    return replace(scenario, observations=observations)


def _has_zeros(audit: AuditContext) -> bool:
    """Zeros belong to the observation space. In tokens they would be a feature that need not exist."""
    spaces = [part.space for part in audit.spec.all_parts]
    return audit.spec.observation_kind != "tokens" and all(
        bool((space.low <= 0).all() and (space.high >= 0).all()) for space in spaces
    )


def order_of(audit: AuditContext, case: Rehearsal, part: Scenario, rollout: int) -> list[tuple[slice, int]]:
    if case.slices:
        return shuffled_slices(case.rows, range(part.steps), audit.generator(rollout))
    return whole_batches(case.rows, range(part.steps))


def reference_outputs(adapter: PolicyAdapter, part: Scenario, row: int) -> Tensor:
    """The outputs of a row that plays alone under id 0, and is reset where its episodes start: [S, K]."""
    outputs = []
    for step in range(part.steps):
        batch = part.batch(slice(row, row + 1), step)
        start = bool(batch.dones | batch.truncateds)
        if start:
            adapter.reset()
        flag, none = torch.tensor([start]), torch.tensor([False])
        outputs.append(adapter.act(replace(batch, dones=flag, truncateds=none, first_id=0)).numbers()[0])
    return torch.stack(outputs)


def _acting_error(played: PlayedRollout, expected: dict[int, Tensor]) -> Tensor:
    error = torch.zeros_like(played.value)
    for row, numbers in expected.items():
        error[row] = abs_difference(played.numbers[row], numbers).amax(-1)
    return error


def _learning_error(learner: PolicyAdapter, played: PlayedRollout, memory: Any, case: Rehearsal) -> Tensor:
    """The difference of learning from acting, [B, T]."""
    segment, error = played.scenario.segment(played.actions), torch.zeros_like(played.value)
    for _ in range(case.repeats):
        for rows in minibatches_of(learner, case):
            noted = error_note(f"learning from a minibatch of {len(rows)} rows and {segment.shape[1]} steps")
            with noted, torch.set_grad_enabled(case.gradients):
                output = learn_rows(learner, segment, memory, rows, case.rows)
            differences = torch.maximum(
                abs_difference(output.value.detach(), played.value[rows]),
                abs_difference(output.log_prob.detach(), played.log_prob[rows]),
            )
            error[rows] = torch.maximum(error[rows], differences.to(error.dtype))
    return error


def learn_rows(learner: PolicyAdapter, segment: Segment, memory: Any, rows: list[int], all_rows: int) -> PolicyOutput:
    if rows == list(range(all_rows)):
        return learner.learn(segment, memory, after_acting=True)
    start = None if memory is None else learner.select_rows(memory, rows)
    return learner.learn(segment[rows], start, after_acting=True)


def minibatches_of(learner: PolicyAdapter, case: Rehearsal) -> Iterator[list[int]]:
    every = list(range(case.rows))
    if case.minibatches == "all" or not learner.learns_row_subsets:
        yield every
    elif case.minibatches == "one":
        yield from ([row] for row in every[:6])
    else:
        shuffled = sorted(every, key=lambda row: (row * 7919) % 104729)  # the same order in every run
        yield shuffled
        yield shuffled[max(case.rows // 2, case.rows - FEW_ROWS) :]
