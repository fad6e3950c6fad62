"""Is memory used at all, does each row have its own, and does nothing see the future?"""

# B rows, T steps

from dataclasses import replace

import torch
from torch import Tensor

from engram.audit.adapters.td import TdAdapter
from engram.audit.checks.idle_rows import IDLE, idle_cause, idle_rows
from engram.audit.checks.rehearsal import Rehearsal
from engram.audit.checks.row_causes import LEAK_STEPS, acting_cause, learning_cause
from engram.audit.checks.which_past import learning_past
from engram.audit.context import AuditContext
from engram.audit.difference import EXACT, abs_difference, max_difference, tolerance
from engram.audit.memory_effect import PASTS
from engram.audit.result import Check, Verdict, attempt
from engram.audit.scenario import PlayedRollout, Scenario, play, random_observations, shuffled_slices


def memory_used(audit: AuditContext) -> Verdict:
    """Two different pasts must change the outputs for the same observation, in acting and in learning."""
    acting = audit.memory_effect
    learning = acting if audit.learning_error else max(_effect_in_learning(audit, steps) for steps in PASTS)
    if learning <= EXACT:
        audit.needs_declared_memory()
    passed = min(acting, learning) > EXACT
    finding = f"two pasts change the outputs for the same present by {acting:.2g} in acting, {learning:.2g} in learning"
    fix = ""
    if not passed and keeps_memory_in_state(audit):
        fix = (
            "The policy leaves its memory in the `state` argument, which no training loop hands back to it. Keep it "
            "in the policy: h, c, env_id = self._manage_lstm_state(td, B, T, device) before the LSTM, "
            "self._store_lstm_state(h, c, env_id) after it."
        )
    elif not passed and acting > EXACT:
        fix = (
            "Acting remembers and learning does not: in a learning call, run the LSTM over the T steps of each row "
            "([T, B, features], time first), not over single steps."
        )
    cause = ""
    if not passed and acting > EXACT:
        cause = attempt(_inverted_in_learning, audit) or (
            "learning does not remember: every step of a segment is computed without the steps before it"
        )
    elif not passed and learning > EXACT:
        cause = "acting does not remember: memory is not stored after a step, or not read at the next"
    return Verdict(passed, min(acting, learning), EXACT, finding, at_least=True, cause=cause, fix=fix)


@torch.no_grad()
def _inverted_in_learning(audit: AuditContext) -> str:
    """The cause if learning remembers only where every step is flagged as the first of an episode."""
    segment, adapter = audit.segment(10, steps=4), audit.adapter()
    segment = replace(segment, dones=torch.ones_like(segment.dones))
    other = random_observations(audit.spec, segment.shape, audit.generator(12))
    other[:, -1] = segment.observations[:, -1]
    one, two = (adapter.learn(past).numbers()[:, -1] for past in (segment, replace(segment, observations=other)))
    if max_difference(one, two) <= EXACT:
        return ""
    return (
        "in learning, the mask of episode starts is inverted: memory is cleared at every step, except where one starts"
    )


@torch.no_grad()
def _effect_in_learning(audit: AuditContext, steps: int) -> float:
    segment, adapter = audit.segment(10, steps=steps), audit.adapter()
    other = random_observations(audit.spec, segment.shape, audit.generator(12))
    other[:, -1] = segment.observations[:, -1]
    pasts = (segment, replace(segment, observations=other), segment.steps(1))  # another past, and a shorter one
    one, *others = (adapter.learn(past).numbers()[:, -1] for past in pasts)
    return max(max_difference(one, two) for two in others)


def keeps_memory_in_state(audit: AuditContext) -> bool:
    """Whether a dict given as `state` comes back with tensors in it."""
    return any(isinstance(value, Tensor) for value in state_after_call(audit).values())


def state_after_call(audit: AuditContext) -> dict:
    """The `state` dict after an acting call with a td, with a graph if the policy left one."""
    adapter, state = audit.adapter(), {"lstm_h": None, "lstm_c": None, "hidden": None}
    if not isinstance(adapter, TdAdapter):
        return {}
    batch = audit.scenario(13, steps=1).batch(audit.every_row, 0)
    try:
        adapter.policy(adapter.acting_td(batch), state=state)
    except Exception:  # it does not accept one, and training never passes one
        return {}
    return state


@torch.no_grad()
def row_isolation(audit: AuditContext) -> Verdict:
    """The order and size of batches must change nothing, and no row's observations may change another row's outputs."""
    scenario = audit.scenario(14, end_chance=0.1)
    whole = play(audit.adapter(), scenario)
    schedule = shuffled_slices(audit.rows, range(audit.steps), audit.generator(15))
    sliced = play(audit.adapter(), scenario, schedule)
    by_slices = abs_difference(sliced.numbers, whole.numbers).amax((1, 2))
    leaks = torch.zeros(audit.rows, audit.rows)  # from row, to row
    first = [(rows, step) for rows, step in schedule if step < LEAK_STEPS]
    for row in range(audit.rows):
        other = scenario.with_other_past(row, LEAK_STEPS - 1, audit.generator(16 + row), audit.spec)
        seen = play(audit.adapter(), other, first).numbers
        leaks[row] = abs_difference(seen, sliced.numbers[:, :LEAK_STEPS]).amax((1, 2))
    learning = torch.zeros(audit.rows, audit.rows)
    if not audit.learning_error:
        learning = _leaks_in_learning(audit, whole, scenario)
    bound = tolerance(whole.numbers)
    own = torch.eye(audit.rows, dtype=torch.bool)
    slicing, acting_leak, learning_leak = (
        float(changes.max()) for changes in (by_slices, leaks.masked_fill(own, 0), learning.masked_fill(own, 0))
    )
    measured = max(slicing, acting_leak, learning_leak)
    finding = f"largest change of a row by others: {acting_leak:.2g} in acting, {learning_leak:.2g} in learning; "
    finding += f"by the order and size of batches: {slicing:.2g}"
    fix, cause = "", ""
    if acting_leak > bound:
        finding = _leak(leaks, "acting") + "; " + finding
        cause = attempt(acting_cause, audit, scenario)
    elif learning_leak > bound:
        finding = _leak(learning, "learning") + "; " + finding
        cause = attempt(learning_cause, audit, learning > bound)
        fix = (
            "Rows and steps are mixed up: an LSTM takes [T, B, features]. From [B * T, features]: "
            "x.view(B, T, -1).transpose(0, 1), and back: y.transpose(0, 1).reshape(B * T, -1)."
        )
    elif slicing > bound:
        row = int(by_slices.argmax())
        finding = f"the outputs of row {row} change when batches are cut or ordered differently; " + finding
        cause = attempt(acting_cause, audit, scenario)
    elif (lost := idle_rows(audit)) > bound:
        what = (
            f"rows that do not act for {IDLE} calls of others continue with another memory, a difference of {lost:.2g}"
        )
        finding, measured = f"{what}; {finding}", max(measured, lost)
        cause = attempt(idle_cause, audit) or f"a row that does not act for {IDLE} calls loses its memory"
    evidence = {"leaks": leaks, "learning": learning}
    return Verdict(measured <= bound, measured, bound, finding, cause=cause, fix=fix, evidence=evidence)


def _leaks_in_learning(audit: AuditContext, played: PlayedRollout, scenario: Scenario) -> Tensor:
    adapter, segment = audit.adapter(), scenario.segment(played.actions)
    base = adapter.learn(segment).numbers()
    leaks = torch.zeros(audit.rows, audit.rows)
    for row in range(audit.rows):
        other = scenario.with_other_past(row, None, audit.generator(30 + row), audit.spec)
        changed = adapter.learn(replace(segment, observations=other.observations)).numbers()
        leaks[row] = abs_difference(changed, base).amax((1, 2))
    return leaks


def _leak(leaks: Tensor, when: str) -> str:
    pairs = leaks.masked_fill(torch.eye(len(leaks), dtype=torch.bool), 0)
    source, target = divmod(int(pairs.argmax()), len(leaks))
    return f"in {when}, other observations of row {source} change the outputs of row {target}"


@torch.no_grad()
def causality(audit: AuditContext) -> Verdict:
    """Different observations from some step on must not change the outputs before it."""
    at, measured, bound, length = 0, 0.0, 0.0, 0
    for steps in (audit.steps, audit.sizes.horizon):
        early, bound = _seen_early(audit, steps)
        at, measured, length = int(early.argmax()), max(measured, float(early.max())), steps
        if measured > bound:
            at = int((early > bound).nonzero()[0])
            break
    finding = f"observations from a step on change the outputs before it by {measured:.2g}"
    if measured > bound:
        finding += f", first with those from step {at} of {length}"
    cause = (attempt(_taken_twice, audit) or attempt(_how_far_ahead, audit, length)) if measured > bound else ""
    return Verdict(measured <= bound, measured, bound, finding, cause=cause)


@torch.no_grad()
def _taken_twice(audit: AuditContext) -> str:
    """Whether a segment begins from a memory of its own later steps."""
    past = learning_past(audit, Rehearsal(rows=4, horizon=audit.steps))
    return f"in learning, {past}" if "steps: they are taken twice" in past or "current memory" in past else ""


@torch.no_grad()
def _how_far_ahead(audit: AuditContext, steps: int) -> str:
    """How many steps ahead an output sees, from one observation in the middle of a segment."""
    segment, adapter, middle = audit.segment(40, steps=steps), audit.adapter(), steps - 2
    observations = segment.observations.clone()
    observations[:, middle] = random_observations(audit.spec, segment.shape, audit.generator(42))[:, middle]
    base, changed = (adapter.learn(each).numbers() for each in (segment, replace(segment, observations=observations)))
    sees = (abs_difference(changed, base).amax((0, 2)) > tolerance(base))[:middle].nonzero().flatten().tolist()
    if not sees:
        return ""
    far = middle - sees[0]
    what = f"up to {far} steps later: a mask or shift is off" if far < middle else "at any later step"
    what = "one step later: a mask or shift is off by one" if far == 1 else what
    return f"the future leaks: in learning, outputs of a step depend on the observation {what}"


def _seen_early(audit: AuditContext, steps: int) -> tuple[Tensor, float]:
    """How much different observations from each step on change the outputs before it, and the bound for rounding."""
    segment, adapter = audit.segment(40, steps=steps), audit.adapter()
    base = adapter.learn(segment).numbers()
    early = torch.zeros(steps)
    for step in {*range(1, min(steps, audit.steps)), steps // 2, steps - 1} - {0}:
        observations = segment.observations.clone()
        observations[:, step:] = random_observations(audit.spec, segment.shape, audit.generator(41 + step))[:, step:]
        changed = adapter.learn(replace(segment, observations=observations)).numbers()
        early[step] = abs_difference(changed[:, :step], base[:, :step]).max()
    return early, tolerance(base)


CHECKS = (
    Check(
        "memory_used",
        "Do the outputs depend on what was seen before?",
        "The policy has a recurrent layer and learns nothing with it: it plays as if every step were its first.",
        "Store the LSTM's state after each acting call and start the next one from it: h, c, env_id = "
        "self._manage_lstm_state(td, B, T, device) before the LSTM, self._store_lstm_state(h, c, env_id) after it.",
        ("_store_lstm_state", "_manage_lstm_state", "get_action_and_value", "forward_eval", "forward"),
        memory_used,
        fix_without_engram="Start every call from the state it is given, and return the state after it.",
        needs_learning=False,
    ),
    Check(
        "row_isolation",
        "Does every environment row have its own memory, in whatever order and slices batches arrive?",
        "Agents act on what others have seen: what is learned is noise, and it changes with the number of workers.",
        "Keep memory by environment row: row i of a batch is td['training_env_id_start'][0] + i. A dict keyed by the "
        "first id of a slice reads the wrong rows as soon as slices are cut differently.",
        ("_manage_lstm_state", "_store_lstm_state", "get_states", "forward_eval", "forward"),
        row_isolation,
        fix_without_engram="No operation may mix rows: no reshape in place of a transpose (an LSTM takes "
        "[T, B, features]), no statistics over the batch, no state kept inside the module.",
        needs_learning=False,
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
