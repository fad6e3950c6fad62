"""Causes of a wrong stored memory: rounded, clamped, scaled, swapped or lost, by acting or by learning."""

# B rows, U numbers of memory per row

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from engram.audit.adapters.base import PolicyAdapter
from engram.audit.checks.boundary import some_memory
from engram.audit.context import AuditContext
from engram.audit.difference import max_difference, tolerance
from engram.audit.memory_parts import MemoryPart, listed, memory_parts, noise_like
from engram.audit.result import attempt
from engram.audit.scenario import play

SECANT_STEPS = 12  # of the secant method
ZERO_FACTOR = 1e-3  # a smaller factor counts as 0: nothing is stored or read
SOLVED = 10  # times the tolerance: the difference that may be left after solving for a factor
MIN_NUMBERS = 50  # stored numbers that allow a conclusion
CLAMPED_ONE_IN = 50  # memory is clamped if at least one of this many numbers is at the limit
ENLARGEMENT = 30.0  # factor on a memory, to see whether it is clamped
CLAMPED = "many stored numbers are exactly {:.3g}: memory is clamped when stored"


@torch.no_grad()
def stored_numbers(audit: AuditContext) -> str:
    """The cause if the stored numbers show it: they are rounded, clamped, or missing in part."""
    adapter = audit.adapter()
    play(adapter, audit.scenario(77, steps=6))
    stored_BU = adapter.memory_numbers(audit.rows)
    if stored_BU is None:
        return ""
    stored_BU = stored_BU[:, (stored_BU != stored_BU[:1]).any(0)]  # a count of steps is the same in all rows
    numbers = stored_BU[stored_BU != 0].float()
    if len(numbers) < MIN_NUMBERS:
        return ""
    if cause := _rounded_or_clamped(numbers):
        return cause
    memory = adapter.memory_of(audit.ids)
    parts = memory_parts(adapter, memory)
    zero = [part.name for part in parts if not bool(part.numbers(memory).any())]
    if 0 < len(zero) < len(parts):
        return f"after acting, {listed(zero)} {'is' if len(zero) == 1 else 'are'} zero: a part of memory is not stored"
    return _clamped_when_large(audit, adapter, parts)


def _rounded_or_clamped(numbers: Tensor) -> str:
    for dtype in (torch.int64, torch.bfloat16, torch.float16):
        if torch.equal(numbers.to(dtype).float(), numbers):
            return f"every stored number is one of {str(dtype).removeprefix('torch.')}: memory is rounded when stored"
    for places in (1, 2, 3):
        if bool(((numbers * 10**places).round() / 10**places == numbers).all()):
            return f"every stored number has {places} decimal places: memory is rounded when stored"
    limit = _limit(numbers)
    return CLAMPED.format(limit) if limit not in (0, 1) else ""  # 0: no limit; gates saturate at 1


def _clamped_when_large(audit: AuditContext, adapter: PolicyAdapter, parts: list[MemoryPart]) -> str:
    """Whether cells are clamped in the step after a large memory. The h of an LSTM is bounded anyway."""
    adapter.change_memory(audit.ids, lambda part: part * ENLARGEMENT if part.is_floating_point() else part)
    play(adapter, audit.scenario(77, steps=1))
    memory = adapter.memory_of(audit.ids)
    cells = [part.numbers(memory) for part in parts if part.name.startswith("c")]
    limit = _limit(torch.cat(cells)) if cells else 0.0
    return CLAMPED.format(limit) if limit else ""


@torch.no_grad()
def scaled_when_stored(audit: AuditContext) -> str:
    """Whether acting continues from a multiple of the memory that learning carries from step to step."""
    scenario, adapter, ids = audit.scenario(76, steps=2), audit.adapter(), audit.ids
    first = play(adapter, scenario.part(0, 1))
    learned = audit.adapter().learn(scenario.segment(first.actions.repeat_interleave(2, 1))).value[:, 1]

    def next_value(part: MemoryPart | None, factor: float) -> Tensor:
        trial = adapter.copy()
        _scale(trial, ids, part, factor)
        return play(trial, scenario.part(1)).value[:, 0]

    name, factor = _scaled_part(adapter, ids, next_value, learned)
    if name and abs(factor) < ZERO_FACTOR:
        return f"learning does not carry {name} from one step to the next, as acting does"
    return f"{name} is scaled when stored: acting continues from a multiple of it" if name else ""


@torch.no_grad()
def scaled_when_read(audit: AuditContext) -> str:
    """Whether learning begins from a multiple of the memory that it is given."""
    scenario, adapter, ids = audit.scenario(76, steps=5), audit.adapter(), audit.ids
    if not adapter.learns_row_subsets:
        return ""
    play(adapter, scenario.part(0, 3))
    after = play(adapter, scenario.part(3))
    played, segment = scenario.part(0, 3), scenario.part(3).segment(after.actions)

    def first_value(part: MemoryPart | None, factor: float) -> Tensor:
        changed = audit.adapter()
        play(changed, played)
        _scale(changed, ids, part, factor)
        return changed.learn(segment, changed.memory_of(ids)).value[:, 0]

    before = audit.adapter()
    play(before, played)
    name, factor = _scaled_part(before, ids, first_value, after.value[:, 0])
    if name and abs(factor) < ZERO_FACTOR:
        return f"acting does not read the {name} stored, as learning does"
    return f"learning reads {1 / factor:.3g} times the {name} stored for a segment" if name else ""


def swapped_when_stored(audit: AuditContext) -> str:
    """Whether acting stores h as c, or one layer as another: once swapped back, learning continues correctly."""
    scenario, adapter = audit.scenario(76, steps=2), audit.adapter()
    played = play(adapter, scenario.part(0, 1))
    memory = adapter.memory_of(audit.ids)
    parts = memory_parts(adapter, memory)
    actions = played.actions.repeat_interleave(2, 1)
    segment = scenario.segment(actions)
    expected = adapter.learn(segment).numbers()[:, 1:]
    for what, order in _orders(parts, memory).items():
        restored = _reordered(parts, memory, order)
        if max_difference(adapter.learn(segment.steps(1), restored).numbers(), expected) <= tolerance(expected):
            return f"{what.replace(' swapped', ' are swapped')} when acting stores its memory"
    return ""


@torch.no_grad()
def segment_start_cause(audit: AuditContext) -> str:
    """The cause, from how learning uses the memory stored for the start of a segment."""
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
        not_reset = adapter.learn(segment, memory, after_acting=True).numbers()
        if max_difference(not_reset, empty) > bound:
            return "learning begins a segment from the current memory, not from the one stored at the segment's start"
        return "learning ignores the memory stored at the start of a segment, and begins from zero"
    if parts and 0 < len(ignored) < len(parts):
        return f"learning ignores {', '.join(ignored)} of the memory stored at the start of a segment"
    if scaled := attempt(scaled_when_read, audit):
        return scaled
    if wrong := attempt(_rearranged_start, audit):
        return wrong
    return "learning begins a segment from another memory than acting had there"


@torch.no_grad()
def _rearranged_start(audit: AuditContext) -> str:
    """Whether learning exchanges parts of the memory at the start of a segment, or mixes those of rows."""
    scenario, adapter, ids = audit.scenario(87, steps=5), audit.adapter(), audit.ids
    play(adapter, scenario.part(0, 3))
    memory = adapter.memory_of(ids)
    last = play(adapter.copy(), scenario.part(3))
    segment = scenario.part(3).segment(last.actions)
    for what, order in _orders(memory_parts(adapter, memory), memory).items():
        changed = _reordered(memory_parts(adapter, memory), memory, order)
        if max_difference(adapter.learn(segment, changed).value, last.value) <= tolerance(last.value):
            return f"learning reads the memory stored at the start of a segment with {what}"
    other = adapter.copy()
    other.change_memory([0], noise_like(0))
    one, changed = (adapter.learn(segment, each.memory_of(ids)).value for each in (adapter, other))
    if max_difference(one[1:], changed[1:]) > tolerance(one):
        return "learning begins the segment of a row from a memory that is computed from those of other rows"
    return ""


def _limit(numbers: Tensor) -> float:
    """The largest size of a number, if many have it."""
    limit = numbers.abs().max()
    return float(limit) if 1 < float((numbers.abs() == limit).sum()) >= len(numbers) / CLAMPED_ONE_IN else 0.0


def _scale(adapter: PolicyAdapter, ids: list[int], part: MemoryPart | None, factor: float) -> None:
    """Multiply a part of the memory of these rows, or all of it."""
    if part is not None:
        part.change_in(adapter, ids, lambda value: value * factor)
    else:
        adapter.change_memory(ids, lambda value: value * factor if value.is_floating_point() else value)


def _scaled_part(
    adapter: PolicyAdapter, ids: list[int], outputs: Callable[[MemoryPart | None, float], Tensor], wanted: Tensor
) -> tuple[str, float]:
    """The name of what is scaled, and the factor that makes it right; an empty name if no factor does."""
    parts = memory_parts(adapter, adapter.memory_of(ids))
    for part in (None, *(parts if len(parts) > 1 else ())):
        if (found := _solve(partial(outputs, part), wanted)) is not None:
            return "memory" if part is None else part.name, found
    return "", 1.0


def _solve(outputs: Callable[[float], Tensor], wanted: Tensor) -> float | None:
    """The factor that gives these outputs, by the secant method for the first row; None if it does not for all."""
    last, factor = 1.0, 1.1
    last_error, error = (float(outputs(each)[0] - wanted[0]) for each in (last, factor))
    for _ in range(SECANT_STEPS):
        if abs(error - last_error) < 1e-12:
            break
        step = -error * (factor - last) / (error - last_error)
        last, last_error, factor = factor, error, factor + step
        error = float(outputs(factor)[0] - wanted[0])
    solved = max_difference(outputs(factor), wanted) <= SOLVED * tolerance(wanted)
    return factor if solved and abs(factor - 1) > 1e-3 and factor != 0 else None


def _orders(parts: list[MemoryPart], memory: Any) -> dict[str, list[int]]:
    """Orders in which the parts of a memory may be exchanged, if their shapes allow it, in words."""
    count = len(parts)
    if not parts or count % 2 or any(part.tensors > 1 for part in parts):
        return {}
    pair = "h and c" if parts[0].name.startswith("h") else f"{parts[0].name} and {parts[1].name}"
    orders = {f"{pair} swapped": [i ^ 1 for i in range(count)]}
    if count > 2:
        orders["layers swapped"] = [count - 2 - 2 * (i // 2) + i % 2 for i in range(count)]
    return {what: order for what, order in orders.items() if _same_shapes(parts, memory, order)}


def _same_shapes(parts: list[MemoryPart], memory: Any, order: list[int]) -> bool:
    shapes = [part.value(memory).shape for part in parts]
    return all(shapes[i] == shapes[other] for i, other in enumerate(order))


def _reordered(parts: list[MemoryPart], memory: Any, order: list[int]) -> Any:
    """The memory with its parts in this order."""
    values, changed = [part.value(memory) for part in parts], memory
    for part, other in zip(parts, order, strict=True):

        def replaced(_: Tensor, value: Tensor = values[other]) -> Tensor:
            return value

        changed = part.changed(changed, replaced)
    return changed
