"""Why acting, learning and the reference differ: experiments at the smallest rehearsal that fails."""

# B rows, T steps, K numbers

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engram.audit.adapters.base import PolicyOutput, Segment
from engram.audit.checks.boundary import some_memory
from engram.audit.checks.rehearsal import Rehearsal
from engram.audit.checks.smallest_rehearsal import SHORT
from engram.audit.context import AuditContext
from engram.audit.difference import EXACT, abs_difference, max_difference, tolerance
from engram.audit.memory_parts import MemoryPart, memory_parts, noise_like
from engram.audit.scenario import PlayedRollout, play, random_observations

STEPS = 6
LOOKED_AT = 24  # the longest segment in which every step is looked at
STORED = "acting stores something else than the memory that learning carries from step to step"
STALE = "calls use a copy of the weights that was made before an update"


def acting_cause(audit: AuditContext, way: Rehearsal) -> str:
    """Why a row in this rehearsal acts differently from one that plays alone."""
    if way.updates:
        return STALE
    if way.far_ids:
        return f"environment ids collide: rows with ids of {way.far_ids[0]} and more share the memory of others"
    if way.slices:
        return "memory is kept by a row's position in the batch, not by its environment id"
    if way.warmup > SHORT:
        return _after_many_steps(audit, way.warmup)
    if way.ends:
        return "memory is not cleared exactly where an episode starts"
    if way.rows > 2:
        return f"with {way.rows} rows or more, rows lose their memory or share that of others"
    return "a row's outputs depend on more than its own observations since its episode began"


@torch.no_grad()
def _after_many_steps(audit: AuditContext, steps: int) -> str:
    """Whether memory is lost after many steps, or changes otherwise."""
    scenario = audit.scenario(80, rows=2, steps=steps + 4)
    carried, bound = play(audit.adapter(), scenario).numbers, 0.0
    for step in range(max(steps - 4, 1), steps + 4):
        fresh = play(audit.adapter(), scenario.part(step)).numbers[:, :2]
        bound = tolerance(fresh)
        if max_difference(fresh, carried[:, step : step + 2]) <= bound:
            return f"memory is cleared after {step} steps, though no episode starts"
    return f"from {steps} calls on, outputs change with the number of calls"


def learning_cause(audit: AuditContext, way: Rehearsal, stored: str) -> str:
    """Why learning in this rehearsal differs from acting that is right."""
    before = bool(way.warmup or way.segments > 1 or way.rollouts > 1)
    if way.updates:
        return STALE
    if stored and not way.ends:
        return f"{stored.rpartition(': ')[2]} ({stored.rpartition(': ')[0]})"
    if way.warmup > SHORT:
        return f"after {way.warmup} acting steps, acting and learning differ: outputs change with the number of calls"
    if way.ends:
        return _at_starts(audit)
    if before:
        return _segment_memory(audit)
    if way.memory != 1.0:
        return "memory that has grown large is clamped or scaled in acting or learning alone"
    if way.repeats > 1:
        return "a learning call changes what the next one computes"
    if way.minibatches == "one":
        return "learning from a minibatch of one row computes something else"
    if way.horizon > 3:
        return _from_a_step(audit, way.horizon)
    if way.rows > 3:
        return f"learning computes something else with {way.rows} rows or more"
    return _simple_segment(audit)


@torch.no_grad()
def _at_starts(audit: AuditContext) -> str:
    """Whether learning forgets at an episode start, and only begins the next one from another state than acting."""
    scenario = audit.scenario(83, steps=4)
    flags = torch.zeros_like(scenario.dones)
    flags[:, 2] = True
    flagged = scenario.with_starts(dones=flags)
    adapter = audit.adapter()
    one, other = (
        adapter.learn(each.segment(play(audit.adapter(), each).actions))
        for each in (flagged, flagged.with_other_past(slice(None), 2, audit.generator(84), audit.spec))
    )
    if max_difference(one.value[:, 2:], other.value[:, 2:]) <= tolerance(one.value):
        return "acting and learning begin an episode from different initial states"
    return "learning does not clear memory where acting does, at episode starts inside a segment"


@torch.no_grad()
def _segment_memory(audit: AuditContext) -> str:
    """What learning does with the memory that is stored for the start of a segment."""
    rows = audit.rows
    adapter = audit.adapter()
    memory = some_memory(audit, adapter, rows)
    if memory is None:
        return "learning does not begin from the memory that acting had at the start of the segment"
    segment, copy = audit.segment(87, steps=2), audit.adapter()
    given, empty = copy.learn(segment, memory).numbers(), copy.learn(segment).numbers()
    bound = tolerance(given)
    ignored = []
    for number, part in enumerate(parts := memory_parts(copy, memory)):
        changed = copy.learn(segment, part.changed(memory, noise_like(number))).numbers()
        if max_difference(changed, given) <= bound:
            ignored.append(part.name)
    if max_difference(given, empty) <= bound:
        lived = adapter.learn(segment, memory, after_acting=True).numbers()
        if max_difference(lived, empty) > bound:
            return "learning begins a segment from the memory of now, not from the one stored at the segment's start"
        return "learning ignores the memory stored at the start of a segment, and begins from zero"
    if parts and 0 < len(ignored) < len(parts):
        return f"learning ignores {', '.join(ignored)} of the memory stored at the start of a segment"
    return "learning begins a segment from another memory than acting had there"


@torch.no_grad()
def _from_a_step(audit: AuditContext, horizon: int) -> str:
    """Whether a long segment loses its memory at a certain step."""
    scenario = audit.scenario(88, rows=2, steps=horizon + 2)
    played = play(audit.adapter(), scenario)
    segment, adapter = scenario.segment(played.actions), audit.adapter()
    learned = adapter.learn(segment)
    off = (abs_difference(learned.value, played.value) > tolerance(played.value)).any(0).nonzero()
    if not len(off):
        return f"in segments of {horizon} steps or more, learning computes something else than acting"
    step = int(off[0])
    if horizon <= LOOKED_AT and (cause := _looks_back(audit, horizon + 2) or _ignores_steps(audit)):
        return cause
    tail = adapter.learn(segment.steps(step))
    if step and max_difference(tail.value, learned.value[:, step:]) <= tolerance(tail.value):
        return f"learning loses memory at step {step} of a segment, though no episode starts there"
    return f"in segments of {horizon} steps or more, learning differs from acting from step {step} on"


@torch.no_grad()
def _simple_segment(audit: AuditContext) -> str:
    """A segment without memory from before and without starts."""
    scenario = audit.scenario(76, steps=STEPS)
    played = play(audit.adapter(own_mode=True), scenario)
    learned = audit.adapter(own_mode=True).learn(scenario.segment(played.actions))
    if cause := next(_rearranged(played, learned), ""):
        return cause
    bound = tolerance(played.value, played.log_prob)
    value, log_prob = (
        abs_difference(getattr(learned, name), getattr(played, name)) > bound for name in ("value", "log_prob")
    )
    if not bool(value.any()):
        return next(_wrong_log_prob(played, learned), "")
    if not bool(log_prob.any()):
        return "the value in learning is not computed as in acting; log-probabilities are"
    if bool((value | log_prob)[:, 0].any()):
        return "outputs differ between acting and learning even without memory: inputs, features or heads differ"
    if cause := _by_position(audit) or _ignores_steps(audit) or _swapped(audit):
        return cause
    return f"{STORED}: one of the two skips, scales, clamps or resets it"


def _by_position(audit: AuditContext) -> str:
    """Whether the same step, at the start of an episode, gives other outputs at another place of a segment."""
    segment, adapter = audit.segment(89, steps=4), audit.adapter()
    started = replace(segment, dones=torch.ones_like(segment.dones))
    whole = adapter.learn(started).numbers()
    alone = torch.cat([adapter.learn(started.steps(step, step + 1)).numbers() for step in range(4)], 1)
    if max_difference(whole, alone) <= tolerance(whole):
        return ""
    return "in learning, outputs depend on the position in the segment, which acting does not know"


def _ignores_steps(audit: AuditContext) -> str:
    """Steps of a segment whose own observation does not matter in learning."""
    segment, adapter = audit.segment(89, steps=STEPS), audit.adapter()
    base, ignored = adapter.learn(segment).numbers(), []
    for step in range(STEPS):
        other = _with_other_step(audit, segment, step)
        if max_difference(adapter.learn(other).numbers()[:, step], base[:, step]) <= tolerance(base):
            ignored.append(str(step))
    if not ignored or len(ignored) == STEPS:
        return ""
    return f"learning skips steps: the observations at steps {', '.join(ignored)} of {STEPS} do not reach their outputs"


def _looks_back(audit: AuditContext, steps: int) -> str:
    """How many steps back the last output depends on an observation, in acting and in learning."""
    scenario, adapter = audit.scenario(88, rows=2, steps=steps), audit.adapter()
    played = play(audit.adapter(), scenario)
    segment = scenario.segment(played.actions)
    learned, reach = adapter.learn(segment).value[:, -1], {"acting": 0, "learning": 0}
    for step in range(steps):
        other = _with_other_step(audit, segment, step)
        acted = play(audit.adapter(), replace(scenario, observations=other.observations)).value[:, -1]
        if max_difference(acted, played.value[:, -1]) > EXACT:
            reach["acting"] = max(reach["acting"], steps - 1 - step)
        if max_difference(adapter.learn(other).value[:, -1], learned) > EXACT:
            reach["learning"] = max(reach["learning"], steps - 1 - step)
    if abs(reach["acting"] - reach["learning"]) < 2:
        return ""
    short, long = sorted(reach, key=lambda kind: reach[kind])
    return f"{short} remembers only {reach[short]} steps back, {long} {reach[long]} and more"


def _with_other_step(audit: AuditContext, segment: Segment, step: int) -> Segment:
    observations = segment.observations.clone()
    observations[:, step] = random_observations(audit.spec, segment.shape, audit.generator(90 + step))[:, step]
    return replace(segment, observations=observations)


def _swapped(audit: AuditContext) -> str:
    """Whether acting stores h as c, or one layer as another: put back, learning continues as it does in one call."""
    scenario, adapter = audit.scenario(76, steps=2), audit.adapter()
    played = play(adapter, scenario.part(0, 1))
    memory = adapter.memory_of(list(range(audit.rows)))
    parts = memory_parts(adapter, memory) if memory is not None else []
    actions = played.actions.repeat_interleave(2, 1)
    segment = scenario.segment(actions)
    expected = adapter.learn(segment).numbers()[:, 1:]
    count = len(parts)
    if not parts or count % 2 or any(part.count > 1 for part in parts):
        return ""
    pair = "h and c" if parts[0].name.startswith("h") else f"{parts[0].name} and {parts[1].name}"
    orders = {f"{pair} are swapped": [i ^ 1 for i in range(count)]}
    if count > 2:
        orders["layers are swapped"] = [count - 2 - 2 * (i // 2) + i % 2 for i in range(count)]
    for what, order in orders.items():
        if _same_shapes(parts, memory, order):
            restored = _reordered(parts, memory, order)
            if max_difference(adapter.learn(segment.steps(1), restored).numbers(), expected) <= tolerance(expected):
                return f"{what} when acting stores its memory"
    return ""


def _same_shapes(parts: list[MemoryPart], memory: Any, order: list[int]) -> bool:
    shapes = [part.value(memory).shape for part in parts]
    return all(shapes[i] == shapes[other] for i, other in enumerate(order))


def _reordered(parts: list[MemoryPart], memory: Any, order: list[int]) -> Any:
    """Memory in which each part has the numbers of another."""
    values, changed = [part.value(memory) for part in parts], memory
    for part, other in zip(parts, order, strict=True):
        changed = part.changed(changed, lambda _, value=values[other]: value)
    return changed


def _rearranged(played: PlayedRollout, learned: PolicyOutput) -> Iterator[str]:
    """Outputs of other rows or steps."""
    for what, acted, replayed in (
        ("outputs", played.value, learned.value),
        ("values", played.value, learned.value),
        ("log-probabilities", played.log_prob, learned.log_prob),
    ):
        bound = tolerance(acted)
        if what == "outputs" and max_difference(played.log_prob, learned.log_prob) <= bound:
            continue
        if max_difference(acted, replayed) <= bound:
            continue
        sources = [_equal_row(replayed[row], acted, bound) for row in range(len(acted))]
        if all(source is not None for source in sources):
            row = next(i for i, source in enumerate(sources) if source != i)
            yield f"in learning, rows are permuted: row {row} gets the {what} of row {sources[row]}"
        for shift in (1, -1):
            if max_difference(replayed[:, 1:-1], acted.roll(shift, 1)[:, 1:-1]) <= bound:
                which = "previous" if shift == 1 else "next"
                yield f"in learning, {what} are shifted by one step: each step gets those of the {which} one"


def _equal_row(numbers: Tensor, acted: Tensor, bound: float) -> int | None:
    return next((row for row in range(len(acted)) if max_difference(numbers, acted[row]) <= bound), None)


def _wrong_log_prob(played: PlayedRollout, learned: PolicyOutput) -> Iterator[str]:
    """Values agree and log-probabilities do not."""
    full = learned.full
    width = 0 if full is None else full.shape[-1]
    acted = played.numbers[..., 1 : 1 + width]
    if full is None or acted.shape != full.shape:
        yield "log-probabilities differ between acting and learning; values do not"
        return
    if max_difference(acted, full) <= tolerance(acted):
        yield "the log-probability in learning is not that of the action taken at the same step"
        return
    ours, theirs = (logits - logits.mean(-1, keepdim=True) for logits in (acted, full))
    ratio = float((ours * theirs).sum() / ours.square().sum().clamp(min=EXACT))
    if max_difference(ratio * ours, theirs) <= 10 * tolerance(theirs):
        yield f"logits in learning are {ratio:.3g} times those in acting: a temperature in one of the two"
        return
    yield "the distribution over actions differs between acting and learning; values do not"
