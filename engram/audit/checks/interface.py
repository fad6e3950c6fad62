"""The memory interface: has, get, set, reset; copies, round trips, unknown rows, saving; learning leaves it alone."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from engram.audit.context import EXACT, Audit, describe, tolerance, worst
from engram.audit.playing import live
from engram.audit.result import Check, DoesNotApplyError, Verdict
from engram.audit.states import leaves, map_state
from engram.audit.subject import Subject
from engram.audit.td import rows_by_id

METHODS = ("has_memory", "get_memory", "set_memory", "reset_memory", "reset_env_memory")


@torch.no_grad()
def memory_interface(audit: Audit) -> Verdict:
    missing = [name for name in METHODS if not callable(getattr(audit.policy, name, None))]
    problems = [f"it has no {', '.join(missing)}"] if missing else []
    asked = 1
    for question in QUESTIONS if not missing else ():
        asked += 1
        try:
            problems.extend(question(audit))
        except Exception as error:
            problems.append(f"{(question.__doc__ or '').rstrip('.').lower()}: it raised {describe(error)}")
    said = "; ".join(problems) or f"all {asked} questions about get, set, reset and saving are answered right"
    return Verdict(not problems, len(problems), 0, said)


def _lived(audit: Audit, steps: int = 3) -> tuple[Subject, Any]:
    subject = audit.subject()
    live(subject, audit.story(90, steps=steps))
    return subject, subject.policy


def _future(audit: Audit, subject: Subject) -> Tensor:
    return live(subject, audit.story(91, steps=2)).numbers


def _has_it(audit: Audit) -> Iterator[str]:
    """It says that it has memory."""
    if audit.policy.has_memory() is not True:  # type: ignore[operator]
        yield f"has_memory() is {audit.policy.has_memory()}, so nobody would save or reset it"  # type: ignore[operator]


def _by_row(audit: Audit) -> Iterator[str]:
    """Memory is by environment row."""
    _, policy = _lived(audit)
    parts = list(rows_by_id(policy.get_memory()))
    if not parts:
        yield "get_memory() holds no dict from environment rows to tensors"
    for part in parts:
        if absent := sorted(set(range(audit.rows)) - set(part)):
            yield f"after rows 0 to {audit.rows - 1} acted, get_memory() has only {sorted(part)}: it lacks {absent}"
            return


def _copies(audit: Audit) -> Iterator[str]:
    """What get_memory gives is a copy."""
    subject, policy = _lived(audit)
    memory = policy.get_memory()
    kept = deepcopy(memory)
    _future(audit, subject)
    if not _same(memory, kept):
        yield "what get_memory() gave changes when the policy acts on: it is no copy"
    elif audit.memory_effect > EXACT and _same(policy.get_memory(), kept):
        yield "get_memory() gives the same as before, though the policy acted on"


def _round_trip(audit: Audit) -> Iterator[str]:
    """Set_memory restores what get_memory gave, with the same future."""
    subject, policy = _lived(audit)
    memory = policy.get_memory()
    given = deepcopy(memory)
    expected = _future(audit, subject)
    policy.set_memory(given)
    if worst(again := _future(audit, subject), expected) > tolerance(expected):
        off = worst(again, expected)
        yield f"after set_memory(get_memory()) the same observations are answered differently, by {off:.2g}"
    elif not _same(given, memory):
        yield "what was given to set_memory() changes when the policy acts on: it is no copy"


def _from_file(audit: Audit) -> Iterator[str]:
    """Memory survives a file and another policy of the same weights."""
    subject, policy = _lived(audit)
    memory = policy.get_memory()
    tensors = {str(number): tensor.contiguous() for number, tensor in enumerate(leaves(memory))}
    loaded = load(save(tensors))
    numbers = iter(range(len(tensors)))
    restored = map_state(lambda _: loaded[str(next(numbers))], memory)
    expected = _future(audit, subject)
    other = audit.subject()
    other.policy.set_memory(restored)  # type: ignore[operator]
    if worst(again := _future(audit, other), expected) > tolerance(expected):
        off = worst(again, expected)
        yield f"memory saved, and loaded into another policy with the same weights, gives another future, by {off:.2g}"


def _reset(audit: Audit) -> Iterator[str]:
    """Reset_memory forgets everything."""
    expected = _future(audit, audit.subject())
    subject, policy = _lived(audit)
    policy.reset_memory()
    if worst(again := _future(audit, subject), expected) > tolerance(expected):
        off = worst(again, expected)
        yield f"after reset_memory() answers are not those of a policy that has seen nothing, by {off:.2g}"


def _reset_row(audit: Audit) -> Iterator[str]:
    """Reset_env_memory forgets one row, and does not mind one it does not know."""
    fresh = _future(audit, audit.subject())
    undisturbed = _future(audit, _lived(audit)[0])
    subject, policy = _lived(audit)
    policy.reset_env_memory(2)
    policy.reset_env_memory(1_000_000)
    seen = _future(audit, subject)
    bound, others = tolerance(undisturbed), torch.arange(audit.rows) != 2
    if worst(seen[2], fresh[2]) > bound:
        yield "after reset_env_memory(2), row 2 still remembers"
    if worst(seen[others], undisturbed[others]) > bound:
        yield "reset_env_memory(2) changes other rows"


def _new_rows(audit: Audit) -> Iterator[str]:
    """Rows that come later begin with nothing."""
    expected = _future(audit, audit.subject())
    subject, _ = _lived(audit)
    story = audit.story(91, steps=2)
    seen = []
    for step in range(2):
        moment = story.moment(slice(0, audit.rows), step)
        late = type(moment)(moment.observations, moment.dones, moment.truncateds, moment.noise, first=audit.rows + 5)
        seen.append(subject.act(late).numbers())
    if worst(torch.stack(seen, 1), expected) > tolerance(expected):
        yield f"rows from {audit.rows + 5} on, never seen before, do not begin with an empty memory"


def _not_weights(audit: Audit) -> Iterator[str]:
    """Memory is not part of the weights."""
    before = {name: value.shape for name, value in audit.subject().policy.state_dict().items()}
    after = {name: value.shape for name, value in _lived(audit)[1].state_dict().items()}
    if changed := sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name)):
        yield f"acting changes what state_dict() holds ({', '.join(changed[:3])}): such weights load nowhere else"


QUESTIONS: tuple[Callable[[Audit], Iterator[str]], ...] = (
    _has_it,
    _by_row,
    _copies,
    _round_trip,
    _from_file,
    _reset,
    _reset_row,
    _new_rows,
    _not_weights,
)


def _same(one: Any, other: Any) -> bool:
    ours, theirs = leaves(one), leaves(other)
    return len(ours) == len(theirs) and all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def learning_aside(audit: Audit) -> Verdict:
    """Acting goes on from where it was, whether there was an update in between or not."""
    audit.needs_memory()
    subject = audit.subject()
    if subject.resets_between_rollouts:
        raise DoesNotApplyError("its training loop forgets everything before a rollout")
    story, later = audit.story(92, steps=3), audit.story(93, steps=2)
    said = []
    for learns in (False, True):
        subject.forget()
        with torch.no_grad():
            live(subject, story)
            memory = subject.memory_of(torch.arange(audit.rows))
        if learns:
            subject.learn(audit.segment(94), memory, after_acting=True)
        with torch.no_grad():
            said.append(live(subject, later).numbers)
    measured, bound = worst(said[0], said[1]), tolerance(said[0])
    return Verdict(
        measured <= bound,
        measured,
        bound,
        f"a learning call changes the outputs when acting goes on by {measured:.2g}",
    )


CHECKS = (
    Check(
        "memory_interface",
        "Can memory be read, put back, saved, and forgotten, row by row?",
        "Checkpoints and evaluation lose or mix up memory: a resumed run is not the run that was stopped.",
        "LSTMWrapper has the whole interface. With a store of your own: get_memory gives (h, c), each a dict from "
        "environment "
        "row to a copy of that row's [layers, size]; set_memory copies it in; reset_env_memory of an unknown row is "
        "no error.",
        ("get_memory", "set_memory", "reset_env_memory", "reset_memory", "has_memory"),
        memory_interface,
        of_natives=True,
        learns=False,
    ),
    Check(
        "learning_aside",
        "Does a learning call leave alone the memory that acting goes on from?",
        "After every update agents go on with the memory of some training segment, not with their own.",
        "Store memory only when acting: self._store_lstm_state does nothing when env_id is None, as it is when "
        "learning.",
        ("_store_lstm_state", "forward"),
        learning_aside,
    ),
)
