"""The memory interface: has, get, set, reset; copies, round trips, unknown rows, saving; learning leaves it alone."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from engram.audit.adapters.base import PolicyAdapter
from engram.audit.adapters.external_state import leaves, map_state
from engram.audit.adapters.td import renumbered, rows_by_id
from engram.audit.context import AuditContext, describe
from engram.audit.difference import EXACT, max_difference, tolerance
from engram.audit.memory_effect import PASTS
from engram.audit.memory_parts import listed
from engram.audit.result import Check, DoesNotApplyError, Verdict
from engram.audit.scenario import play

FAR = 300  # environment ids from which on rows are reset too
SURVIVES = {
    "set_memory()": ("after set_memory(get_memory()) the same observations", "leaves row 2 as it was"),
    "reset_memory()": ("after reset_memory() outputs",),
    "reset_env_memory()": ("still remembers",),
}
METHODS = ("has_memory", "get_memory", "set_memory", "reset_memory", "reset_env_memory")


@torch.no_grad()
def memory_interface(audit: AuditContext) -> Verdict:
    audit.needs_declared_memory()
    missing = [name for name in METHODS if not callable(getattr(audit.policy, name, None))]
    problems = [f"it has no {', '.join(missing)}"] if missing else []
    for question in [] if missing else QUESTIONS:
        try:
            problems.extend(question(audit))
        except Exception as error:
            problems.append(f"{(question.__doc__ or '').rstrip('.').lower()}: it raised {describe(error)}")
    finding = "; ".join(problems) or f"get, set, reset and saving hold in all {1 + len(QUESTIONS)} cases"
    return Verdict(not problems, len(problems), 0, finding, cause=_cause(problems))


def _cause(problems: list[str]) -> str:
    """The first problem, unless all that should replace memory leave some of it."""
    kept = [name for name, signs in SURVIVES.items() if any(sign in each for sign in signs for each in problems)]
    if len(kept) < 2:
        return problems[0] if problems else ""
    return f"memory, or a part or second copy of it, survives {listed(kept)}: acting still reads it"


def _after_acting(audit: AuditContext) -> tuple[PolicyAdapter, Any]:
    """An adapter whose rows have acted for a few steps, and its policy."""
    adapter = audit.adapter()
    play(adapter, audit.scenario(90, steps=3))
    return adapter, adapter.policy


def _next_outputs(audit: AuditContext, adapter: PolicyAdapter) -> Tensor:
    return play(adapter, audit.scenario(91, steps=2)).numbers


def _has_it(audit: AuditContext) -> Iterator[str]:
    """`has_memory` is true."""
    if audit.policy.has_memory() is not True:  # type: ignore[operator]
        yield f"has_memory() is {audit.policy.has_memory()}, so nobody would save or reset it"  # type: ignore[operator]


def _by_row(audit: AuditContext) -> Iterator[str]:
    """Memory is by environment row."""
    _, policy = _after_acting(audit)
    parts = list(rows_by_id(policy.get_memory()))
    if not parts:
        yield "get_memory() holds no dict from environment rows to tensors"
    for part in parts:
        if absent := sorted(set(range(audit.rows)) - set(part)):
            yield f"after rows 0 to {audit.rows - 1} acted, get_memory() has only {sorted(part)}: it lacks {absent}"
            return


def _copies(audit: AuditContext) -> Iterator[str]:
    """`get_memory` returns a copy."""
    adapter, policy = _after_acting(audit)
    memory = policy.get_memory()
    kept = deepcopy(memory)
    _next_outputs(audit, adapter)
    if not _same(memory, kept):
        yield "what get_memory() gave changes when the policy acts on: it is no copy"
    elif audit.past_effect > EXACT and all(_same(*_memories_of_two_pasts(audit, steps)) for steps in PASTS):
        yield "get_memory() gives the same for two different pasts, though outputs differ"
    elif audit.memory_effect > EXACT and all(
        _same(*_memories_of_two_pasts(audit, steps, one_policy=True))
        and not _same(*_memories_of_two_pasts(audit, steps))
        for steps in PASTS
    ):
        yield "get_memory() gives the same as before, after the policy has seen another past"


def _memories_of_two_pasts(audit: AuditContext, steps: int, one_policy: bool = False) -> list[Any]:
    """The results of get_memory after two different pasts, in two copies of a policy or in one.

    A policy may keep what it saw at an episode's start, so in one policy every row starts an episode before its second
    past.
    """
    scenario, memories = audit.scenario(96, steps=steps - 1), list[Any]()
    adapter = audit.adapter()
    for past in (scenario, scenario.with_other_past(slice(None), None, audit.generator(95), audit.spec)):
        if not one_policy:
            adapter = audit.adapter()
        elif memories:
            first_step = torch.zeros_like(past.dones)
            first_step[:, 0] = True
            past = past.with_starts(dones=first_step | past.dones, truncateds=past.truncateds & ~first_step)
        play(adapter, past)
        policy: Any = adapter.policy
        memories.append(deepcopy(policy.get_memory()))
    return memories


def _round_trip(audit: AuditContext) -> Iterator[str]:
    """After set_memory with a result of get_memory, outputs must be the same."""
    adapter, policy = _after_acting(audit)
    memory = policy.get_memory()
    given = deepcopy(memory)  # must not change, or the policy has kept it without a copy
    expected = _next_outputs(audit, adapter)
    policy.set_memory(given)
    difference = max_difference(_next_outputs(audit, adapter), expected)
    if difference > tolerance(expected):
        adapter, policy = _after_acting(audit)
        policy.set_memory(deepcopy(policy.get_memory()))
        kept = max_difference(_next_outputs(audit, adapter), expected) <= tolerance(expected)
        rounded = all(torch.equal(part.half().to(part.dtype), part) for part in leaves(memory))
        why = "get_memory() and set_memory() leave out a part of what the policy remembers: " if kept else ""
        why = "get_memory() rounds what it gives to half precision: " if rounded else why
        yield f"{why}after set_memory(get_memory()) the same observations give other outputs, by {difference:.2g}"
    elif not _same(given, memory):
        yield "what was given to set_memory() changes when the policy acts on: it is no copy"


def _replaces(audit: AuditContext) -> Iterator[str]:
    """`set_memory` must clear rows that it is not given."""
    fresh = _next_outputs(audit, audit.adapter())
    adapter, policy = _after_acting(audit)
    others = [row for row in range(audit.rows) if row != 2]
    expected = _next_outputs(audit, adapter.copy())
    policy.set_memory(renumbered(deepcopy(policy.get_memory()), others, others))
    seen, bound = _next_outputs(audit, adapter), tolerance(fresh)
    if any(max_difference(seen[row], expected[row]) > bound for row in others):
        yield "set_memory() gives rows the memory of others, where the ids that it is given are not 0, 1, 2, …"
    elif max_difference(seen[2], fresh[2]) > bound:
        yield "set_memory() with all rows but row 2 leaves row 2 as it was"


def _from_file(audit: AuditContext) -> Iterator[str]:
    """Memory survives a file, and works in another policy with the same weights."""
    adapter, policy = _after_acting(audit)
    memory = policy.get_memory()
    tensors = {str(number): tensor.contiguous() for number, tensor in enumerate(leaves(memory))}
    loaded = load(save(tensors))
    numbers = iter(range(len(tensors)))
    restored = map_state(lambda _: loaded[str(next(numbers))], memory)
    expected = _next_outputs(audit, adapter)
    other = audit.adapter()
    other.policy.set_memory(restored)  # type: ignore[operator]
    difference = max_difference(_next_outputs(audit, other), expected)
    if difference > tolerance(expected):
        yield f"memory loaded from a file gives other outputs in a policy with the same weights, by {difference:.2g}"


def _reset(audit: AuditContext) -> Iterator[str]:
    """Reset_memory forgets everything."""
    expected = _next_outputs(audit, audit.adapter())
    adapter, policy = _after_acting(audit)
    policy.reset_memory()
    difference = max_difference(_next_outputs(audit, adapter), expected)
    if difference > tolerance(expected):
        yield f"after reset_memory() outputs are not those of a policy that has seen nothing, by {difference:.2g}"


def _reset_row(audit: AuditContext) -> Iterator[str]:
    """`reset_env_memory` forgets one row, and ignores unknown rows."""
    for first in (0, FAR):
        try:
            found = list(_reset_each(audit, first))
        except Exception:
            if not first:
                raise
            return  # a table may refuse far ids
        if found:
            yield from found
            return


def _reset_each(audit: AuditContext, first: int) -> Iterator[str]:
    """One row after the other, of environments with ids from here on."""
    ids = range(first, first + audit.rows)
    before, after = audit.scenario(90, steps=3), audit.scenario(91, steps=2)
    acted = audit.adapter()
    fresh = play(acted.copy(), after, ids=ids).numbers
    play(acted, before, ids=ids)
    undisturbed = play(acted.copy(), after, ids=ids).numbers
    bound = tolerance(undisturbed)
    for row, row_id in enumerate(ids):
        adapter = acted.copy()
        policy: Any = adapter.policy
        policy.reset_env_memory(row_id)
        policy.reset_env_memory(1_000_000)
        seen = play(adapter, after, ids=ids).numbers
        others = torch.arange(audit.rows) != row
        if max_difference(seen[row], fresh[row]) > bound:
            cleared = [other for other in range(audit.rows) if max_difference(seen[other], fresh[other]) <= bound]
            instead = f", and row {ids[cleared[0]]} does not" if cleared else ""
            yield f"after reset_env_memory({row_id}), row {row_id} still remembers{instead}"
            return
        if max_difference(seen[others], undisturbed[others]) > bound:
            yield f"reset_env_memory({row_id}) changes other rows"
            return


def _new_rows(audit: AuditContext) -> Iterator[str]:
    """Rows that appear later start with empty memory."""
    expected = _next_outputs(audit, audit.adapter())
    adapter, _ = _after_acting(audit)
    first = audit.rows + 5
    seen = play(adapter, audit.scenario(91, steps=2), ids=range(first, first + audit.rows)).numbers
    if max_difference(seen, expected) > tolerance(expected):
        yield f"rows from {first} on, never seen before, do not begin with an empty memory"


def _not_weights(audit: AuditContext) -> Iterator[str]:
    """Memory is not part of the weights."""
    before = {name: value.shape for name, value in audit.adapter().policy.state_dict().items()}
    after = {name: value.shape for name, value in _after_acting(audit)[1].state_dict().items()}
    if changed := sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name)):
        yield f"acting changes what state_dict() holds ({', '.join(changed[:3])}): such weights load nowhere else"


QUESTIONS: tuple[Callable[[AuditContext], Iterator[str]], ...] = (
    _has_it,
    _by_row,
    _copies,
    _round_trip,
    _replaces,
    _from_file,
    _reset,
    _reset_row,
    _new_rows,
    _not_weights,
)


def _same(one: Any, other: Any) -> bool:
    ours, theirs = leaves(one), leaves(other)
    return len(ours) == len(theirs) and all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def memory_after_learning(audit: AuditContext) -> Verdict:
    """A learning call must not change the memory that acting continues from."""
    audit.needs_memory()
    adapter = audit.adapter()
    if adapter.resets_between_rollouts:
        raise DoesNotApplyError("its training loop forgets everything before a rollout")
    outputs = []
    for learns in (False, True):
        adapter.reset()
        with torch.no_grad():
            play(adapter, audit.scenario(92, steps=3))
            memory = adapter.memory_of(audit.ids)
        if learns:
            adapter.learn(audit.segment(94), memory, after_acting=True)
        with torch.no_grad():
            outputs.append(play(adapter, audit.scenario(93, steps=2)).numbers)
    measured, bound = max_difference(outputs[0], outputs[1]), tolerance(outputs[0])
    text = f"a learning call changes the outputs of acting afterwards by {measured:.2g}"
    return Verdict(measured <= bound, measured, bound, text)


CHECKS = (
    Check(
        "memory_interface",
        "Can memory be read, put back, saved, and forgotten, row by row?",
        "Checkpoints and evaluation lose or mix up memory: a resumed run is not the run that was stopped.",
        "LSTMWrapper has the whole interface. With a store of your own: get_memory gives (h, c), each a dict from "
        "environment row to a copy of that row's [layers, size]; set_memory copies it in; reset_env_memory of an "
        "unknown row is no error.",
        ("get_memory", "set_memory", "reset_env_memory", "reset_memory", "has_memory"),
        memory_interface,
        td_only=True,
        needs_learning=False,
    ),
    Check(
        "memory_after_learning",
        "Does a learning call leave alone the memory that acting continues from?",
        "After every update agents continue with the memory of some training segment, not with their own.",
        "Store memory only when acting: self._store_lstm_state does nothing when env_id is None, as it is when "
        "learning.",
        ("_store_lstm_state", "forward"),
        memory_after_learning,
    ),
)
