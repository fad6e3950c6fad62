"""Is memory used at all, does each row have its own, and does nothing see the future?"""

# B rows, T steps

from dataclasses import replace

import torch
from torch import Tensor

from engram.audit.context import EXACT, Audit, gap, tolerance, worst
from engram.audit.observations import random_observations
from engram.audit.playing import Lived, Story, in_slices, live
from engram.audit.result import Check, Verdict
from engram.audit.td import TdSubject

LEAKS = 4  # steps in which what one row sees could reach another


def memory_used(audit: Audit) -> Verdict:
    """Two pasts, the same present: something must differ, in acting and in learning."""
    acting = audit.memory_effect
    learning = acting
    if not audit.learning_fault:
        segment = audit.segment(10)
        other = random_observations(audit.spec, segment.shape, audit.generator(12))
        other[:, -1] = segment.observations[:, -1]
        subject = audit.subject()
        with torch.no_grad():
            one, two = (
                subject.learn(each).numbers()[:, -1] for each in (segment, replace(segment, observations=other))
            )
        learning = worst(one, two)
    passed = min(acting, learning) > EXACT
    said = f"two pasts change the outputs for the same present by {acting:.2g} in acting, {learning:.2g} in learning"
    fix = ""
    if not passed and keeps_memory_in_state(audit):
        fix = (
            "The policy leaves its memory in the `state` argument, which no training loop hands back to it. Keep it "
            "in the "
            "policy: h, c, env_id = self._manage_lstm_state(td, B, T, device) before the LSTM, "
            "self._store_lstm_state(h, c, env_id) after it."
        )
    elif not passed and acting > EXACT:
        fix = (
            "Acting remembers and learning does not: in a learning call, run the LSTM over the T steps of each row "
            "([T, B, features], time first), not over single steps."
        )
    return Verdict(passed, min(acting, learning), EXACT, said, at_least=True, fix=fix)


def keeps_memory_in_state(audit: Audit) -> bool:
    """Whether a dict given as `state` comes back with tensors in it."""
    return any(isinstance(value, Tensor) for value in state_after_call(audit).values())


def state_after_call(audit: Audit) -> dict:
    """What a policy with a td leaves in the `state` it is given, with a graph if it has one."""
    subject, state = audit.subject(), {"lstm_h": None, "lstm_c": None, "hidden": None}
    if not isinstance(subject, TdSubject):
        return {}
    moment = audit.story(13, steps=1).moment(slice(0, audit.rows), 0)
    try:
        subject.policy(subject.acting_td(moment), state=state)
    except Exception:  # it does not know what to do with one, and is never given one
        return {}
    return state


@torch.no_grad()
def row_isolation(audit: Audit) -> Verdict:
    """Batches in any order and size change nothing, and what one row sees never changes what another one says."""
    story, subject = audit.story(14, end_chance=0.1), audit.subject()
    whole = live(subject, story)
    schedule = in_slices(audit.rows, range(audit.steps), audit.generator(15))
    subject.forget()
    sliced = live(subject, story, schedule)
    by_slices = gap(sliced.numbers, whole.numbers).amax((1, 2))
    leaks = torch.zeros(audit.rows, audit.rows)  # from row, to row
    first = [(rows, step) for rows, step in schedule if step < LEAKS]
    for row in range(audit.rows):
        other = story.with_other_past(row, LEAKS - 1, audit.generator(16 + row), audit.spec)
        subject.forget()
        leaks[row] = gap(live(subject, other, first).numbers, sliced.numbers[:, :LEAKS]).amax((1, 2))
    learning = torch.zeros(audit.rows, audit.rows)
    if not audit.learning_fault:
        learning = _leaks_in_learning(audit, whole, story)
    bound = tolerance(whole.numbers)
    own = torch.eye(audit.rows, dtype=torch.bool)
    found = [float(by_slices.max()), float(leaks.masked_fill(own, 0).max()), float(learning.masked_fill(own, 0).max())]
    said = f"largest change of a row by others: {found[1]:.2g} in acting, {found[2]:.2g} in learning; "
    said += f"by the order and size of batches: {found[0]:.2g}"
    fix = ""
    if found[1] > bound:
        said = _leak(leaks, "acting") + "; " + said
    elif found[2] > bound:
        said = _leak(learning, "learning") + "; " + said
        fix = (
            "Rows and steps are mixed up: an LSTM takes [T, B, features]. From [B * T, features]: "
            "x.view(B, T, -1).transpose(0, 1), and back: y.transpose(0, 1).reshape(B * T, -1)."
        )
    elif found[0] > bound:
        row = int(by_slices.argmax())
        said = f"the outputs of row {row} change when batches are cut or ordered differently; " + said
    return Verdict(
        max(found) <= bound, max(found), bound, said, fix=fix, evidence={"leaks": leaks, "learning": learning}
    )


def _leaks_in_learning(audit: Audit, lived: Lived, story: Story) -> Tensor:
    subject, segment = audit.subject(), story.segment(lived.actions)
    base = subject.learn(segment).numbers()
    leaks = torch.zeros(audit.rows, audit.rows)
    for row in range(audit.rows):
        other = story.with_other_past(row, None, audit.generator(30 + row), audit.spec)
        changed = subject.learn(replace(segment, observations=other.observations)).numbers()
        leaks[row] = gap(changed, base).amax((1, 2))
    return leaks


def _leak(leaks: Tensor, when: str) -> str:
    pairs = leaks.masked_fill(torch.eye(len(leaks), dtype=torch.bool), 0)
    source, target = divmod(int(pairs.argmax()), len(leaks))
    return f"in {when}, other observations of row {source} change the outputs of row {target}"


@torch.no_grad()
def causality(audit: Audit) -> Verdict:
    """Other observations from a step on change nothing before it."""
    segment, subject = audit.segment(40), audit.subject()
    base = subject.learn(segment).numbers()
    rows, steps = segment.shape
    early = torch.zeros(steps)
    for step in range(1, steps):
        observations = segment.observations.clone()
        observations[:, step:] = random_observations(audit.spec, (rows, steps), audit.generator(41 + step))[:, step:]
        changed = subject.learn(replace(segment, observations=observations)).numbers()
        early[step] = gap(changed[:, :step], base[:, :step]).max()
    bound, measured = tolerance(base), float(early.max())
    said = f"observations from a step on change the outputs before it by {measured:.2g}"
    if measured > bound:
        said += f", first with those from step {int((early > bound).nonzero()[0])} of {steps}"
    return Verdict(measured <= bound, measured, bound, said)


CHECKS = (
    Check(
        "memory_used",
        "Do the outputs depend on what was seen before?",
        "The policy has a recurrent layer and learns nothing with it: it plays as if every step were its first.",
        "Store the LSTM's state after each acting call and start the next one from it: h, c, env_id = "
        "self._manage_lstm_state(td, B, T, device) before the LSTM, self._store_lstm_state(h, c, env_id) after it.",
        ("_store_lstm_state", "_manage_lstm_state", "get_action_and_value", "forward_eval", "forward"),
        memory_used,
        elsewhere="Start every call from the state it is given, and return the state after it.",
        learns=False,
    ),
    Check(
        "row_isolation",
        "Does every environment row have its own memory, in whatever order and slices batches arrive?",
        "Agents act on what others have seen: what is learned is noise, and it changes with the number of workers.",
        "Keep memory by environment row: row i of a batch is td['training_env_id_start'][0] + i. A dict keyed by the "
        "first id of a slice reads the wrong rows as soon as slices are cut differently.",
        ("_manage_lstm_state", "_store_lstm_state", "get_states", "forward_eval", "forward"),
        row_isolation,
        elsewhere="No operation may mix rows: no reshape where a transpose is needed (an LSTM takes [T, B, features]), "
        "no statistics over the batch, no state kept inside the module.",
        learns=False,
    ),
    Check(
        "causality",
        "Is every step of a segment judged without the observations that follow it?",
        "Learning judges actions by what only later became visible: values look excellent and the policy does not "
        "act on them.",
        "Use a recurrent layer in one direction, and give it time first: x.view(B, T, -1).transpose(0, 1), not a "
        "reshape.",
        ("forward", "get_states"),
        causality,
    ),
)
