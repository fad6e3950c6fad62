"""Are the outputs the same twice, whatever the random seed, the mode, and whether gradients are computed?"""

import random
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from engram.audit.adapters.base import Segment
from engram.audit.adapters.row_state import leaves
from engram.audit.adapters.td import TdAdapter
from engram.audit.checks.boundary import some_memory
from engram.audit.context import AuditContext
from engram.audit.difference import max_difference, tolerance
from engram.audit.memory_parts import listed
from engram.audit.result import Check, Verdict
from engram.audit.scenario import play, random_observations, seed_everything


@torch.no_grad()
def determinism(audit: AuditContext) -> Verdict:
    """Outputs do not depend on the seed, nor on earlier calls; weights and actions depend on the seed alone."""
    if seeded := _seeds_generators(audit):
        cause = f"a call seeds {seeded}: all that is drawn after it repeats"
        return Verdict(False, None, None, cause, cause=cause, fix=SEEDS_FIX, fix_without_engram=SEEDS_FIX)
    drawn, always = audit.random_outputs[None], audit.random_outputs[False]
    if (drawn or always) and (shared := _shared_by_copies(audit)):
        return Verdict(False, None, None, shared, cause=SHARED, fix=SHARED_FIX, fix_without_engram=SHARED_FIX)
    if drawn or always:
        text = f"the policy draws random numbers by itself: the outputs of {drawn or always} change with the seed"
        text += "" if always else " in training mode, as with dropout"
        dropout = [name for name, layer in audit.policy.named_modules() if isinstance(layer, nn.Dropout)]
        by = f": dropout ({dropout[0]})" if dropout else ": dropout, noise or a random state"
        cause = f"the policy draws random numbers in {drawn or always}{by}"
        return Verdict(False, None, None, text, cause=cause, fix=RANDOM_FIX, fix_without_engram=RANDOM_FIX)
    if changed := _overwrites_outputs(audit) or _changed_by_calls(audit) or _remembers_calls(audit):
        return Verdict(False, None, None, changed, cause=changed, fix=REPEAT_FIX, fix_without_engram=REPEAT_FIX)
    scenario = audit.scenario(134)
    weights, actions = [], []
    for _ in range(2):
        seed_everything(audit.seed)
        adapter = audit.adapt_like_original(audit.make())
        adapter.fixed_sampling = False
        seed_everything(audit.seed)
        actions.append(play(adapter, scenario).actions)
        weights.append([p.detach().clone() for p in adapter.policy.parameters()])
    other = sum(not torch.equal(a, b) for a, b in zip(*weights, strict=True))
    share = float((actions[0] != actions[1]).float().mean())
    text = f"from the same seed, {share:.0%} of actions and {other} of {len(weights[0])} weight tensors differ"
    return Verdict(share == 0 and other == 0, max(share, float(other)), 0, text)


def _shared_by_copies(audit: AuditContext) -> str:
    """Whether what one copy plays changes the outputs of another, but not once that one is reset."""
    scenario = audit.scenario(93, steps=3)
    outputs: list[Tensor] = []
    for other, reset in ((False, True), (False, True), (True, False)):
        if other:
            play(audit.adapter(), audit.scenario(86, steps=3))
        adapter = audit.adapter()
        if reset:
            adapter.reset()
        seed_everything(len(outputs))  # another one each time
        outputs.append(play(adapter, scenario).numbers)
    one, again, after_another = outputs
    off = max_difference(one, after_another)
    if max_difference(one, again) > tolerance(one) or off <= tolerance(one):
        return ""
    return f"what one copy of the policy plays changes the outputs of another, by {off:.2g}: {SHARED}"


def _overwrites_outputs(audit: AuditContext) -> str:
    """Whether a call changes what the call before returned."""
    adapter, scenario = audit.adapter(), audit.scenario(86, steps=2)
    first = adapter.act(scenario.batch(slice(0, audit.rows), 0))
    given = {"the value": first.value, "the log-probability": first.log_prob, "the action": first.actions}
    before = {name: value.clone() for name, value in given.items()}
    adapter.act(scenario.batch(slice(0, audit.rows), 1))
    changed = [name for name, value in given.items() if not torch.equal(value, before[name])]
    return f"a call overwrites {' and '.join(changed)} that the call before returned (a buffer is reused)" * bool(
        changed
    )


def _changed_by_calls(audit: AuditContext) -> str:
    """Why a repeated learning call gives different outputs, if it does."""
    if audit.learning_error:
        return ""
    adapter, segment = audit.adapter(own_mode=True), audit.segment(85, end_chance=0.2)
    if isinstance(adapter, TdAdapter):
        adapter.reset_works = callable(getattr(adapter.policy, "reset_memory", None))
    memory = some_memory(audit, audit.adapter(own_mode=True), audit.rows)
    given = deepcopy(memory)
    outputs = [adapter.learn(segment, memory, after_acting=True).numbers() for _ in range(6)]
    if not all(torch.equal(one, other) for one, other in zip(leaves(memory), leaves(given), strict=True)):
        return "a learning call writes into the state that it is given, so that the caller's copy changes (aliasing)"
    repeats = [max_difference(outputs[0], other) for other in outputs[1:]]
    if max(repeats) > tolerance(outputs[0]) and not (moved := _moved_buffers(audit, acting=False)):
        text = f"the same learning call gives other outputs when repeated, by {max(repeats):.2g}"
        return f"{text}: it depends on earlier calls"
    moved = _moved_buffers(audit, acting=True)
    play(adapter, audit.scenario(86, steps=3))
    off = max(*repeats, max_difference(outputs[0], adapter.learn(segment, memory, after_acting=True).numbers()))
    if moved and off > tolerance(outputs[0]):
        return (
            f"the same learning call gives other outputs later, by {off:.2g}, because calls change {', '.join(moved)}"
        )
    return ""


def _remembers_calls(audit: AuditContext) -> str:
    """Whether a learning call gets outputs that were computed for the similar observations of the call before."""
    if audit.learning_error:
        return ""
    segment = audit.segment(85)
    for other in _similar(audit, segment):
        adapter, fresh = audit.adapter(own_mode=True), audit.adapter(own_mode=True)
        before = adapter.learn(segment, after_acting=True).numbers()
        after, expected = (each.learn(other, after_acting=True).numbers() for each in (adapter, fresh))
        if max_difference(after, expected) > tolerance(expected):
            same = max_difference(after, before) <= tolerance(before)
            return (
                CACHED
                if same
                else "a learning call gives other outputs, depending on the observations of the one before"
            )
    return ""


def _similar(audit: AuditContext, segment: Segment) -> Iterator[Segment]:
    """Segments of the same shape: with other observations in one row, or at one step, or with two steps swapped."""
    others = random_observations(audit.spec, segment.shape, audit.generator(87))
    rows, steps = segment.shape
    for index in ((rows - 1,), (0,), (slice(None), steps - 1), (slice(None), 0)):
        observations = segment.observations.clone()
        observations[index] = others[index]
        yield replace(segment, observations=observations)
    swapped = segment.observations.clone()  # sums and sets stay the same
    swapped[:, [1, 2]] = swapped[:, [2, 1]]
    yield replace(segment, observations=swapped)


def _seeds_generators(audit: AuditContext) -> str:
    """The global random generators that are in the same state after a call, whatever state they were in before it."""
    batch, segment = audit.scenario(93, steps=1).batch(slice(0, audit.rows), 0), audit.segment(92)
    states: list[dict[str, Any]] = []
    for seed in (1, 2):
        adapter = audit.original.copy()
        adapter.fixed_sampling = False
        seed_everything(seed)
        adapter.act(batch)
        if not audit.learning_error:
            adapter.learn(segment)
        states.append(
            {
                "torch's": torch.get_rng_state().tolist(),
                "NumPy's": np.random.get_state()[1].tolist(),  # type: ignore[union-attr, index]
                "Python's": random.getstate(),
            }
        )
    same = [name for name, state in states[0].items() if state == states[1][name]]
    return f"{listed(same)} global random generator" if same else ""


def _moved_buffers(audit: AuditContext, acting: bool) -> list[str]:
    """Buffers saved with the weights that calls change."""
    adapter = audit.adapter(own_mode=True)
    names = dict(adapter.policy.named_buffers()).keys() & adapter.policy.state_dict().keys()
    before = {name: value.clone() for name, value in adapter.policy.named_buffers() if name in names}
    if acting:
        play(adapter, audit.scenario(86, steps=3))
    adapter.policy.train()
    after = dict(adapter.policy.named_buffers())
    moved = [name for name, value in before.items() if not torch.equal(after[name], value)]
    adapter.learn(audit.segment(85), after_acting=True)
    after = dict(adapter.policy.named_buffers())
    return sorted({*moved, *(name for name, value in before.items() if not torch.equal(after[name], value))})


def modes(audit: AuditContext) -> Verdict:
    """The same numbers in training and evaluation mode, and with and without gradients."""
    if audit.learning_error:
        text = f"the simplest learning call raises {audit.learning_error}"
        return Verdict(False, None, None, text, cause="a learning call raises an error", fix=LEARNING_CALL)
    audit.needs_repeatable_outputs()
    scenario, segment = audit.scenario(102, end_chance=0.1), audit.segment(103, end_chance=0.1)
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    for name, training, gradients in (("train()", True, True), ("eval()", False, True), ("no_grad", True, False)):
        adapter = audit.adapter()
        adapter.training_mode = training
        with torch.set_grad_enabled(gradients):
            seed_everything(1)
            seen[name] = play(adapter, scenario).numbers, adapter.learn(segment).numbers().detach()
    base, bound = seen["train()"], tolerance(*seen["train()"])
    found = {
        f"{what} in {name}": max_difference(seen[name][i], base[i])
        for name in ("eval()", "no_grad")
        for i, what in enumerate(("acting", "learning"))
    }
    measured = max(found.values())
    off = [f"{what} differs from train() by {value:.2g}" for what, value in found.items() if value > bound]
    text = "; ".join(off) or "acting and learning give the same numbers in train(), eval() and under no_grad"
    cause = ""
    if off and (causes := _layers_with_modes(audit)):
        text += f", because of {', '.join(causes)}"
        cause = f"train() and eval() differ because of {causes[0]}"
    return Verdict(measured <= bound, measured, bound, text, cause=cause)


def _layers_with_modes(audit: AuditContext) -> list[str]:
    """The layers that compute something else in training: their names, and what they do then."""
    effects = {nn.modules.batchnorm._NormBase: "mixes rows", nn.modules.dropout._DropoutNd: "is random"}
    found = [(name, layer, kind) for name, layer in audit.policy.named_modules() for kind in effects]
    return [
        f"{name} ({type(layer).__name__}, which {effects[kind]} in train())"
        for name, layer, kind in found
        if isinstance(layer, kind)
    ][:3]


RANDOM_FIX = (
    "Outputs must be a function of observations, memory and weights: take out dropout (also nn.LSTM(dropout=…)), noise "
    "and random initial states. Only the sampled action may be random."
)
SHARED = "memory is shared by all copies of the policy: it is kept in the class, a global or a closure"
SHARED_FIX = "Keep memory in attributes that __init__ makes (self.memory = {}), or in buffers."
SEEDS_FIX = "Seed random generators once, before training, or draw from a torch.Generator of your own."
CACHED = "outputs are taken from a cache: a call gets those of an earlier one with other observations"
REPEAT_FIX = (
    "A call may change nothing but the memory of its rows. Update statistics of observations between rollouts, and use "
    "normalisations that do not depend on the batch (LayerNorm, not BatchNorm)."
)
LEARNING_CALL = (
    "A learning call is policy(td, action=actions) with a td of batch size [B, T] and observations [B, T, …]: encode "
    "the B * T observations, run the LSTM over [T, B, features], and fill in the td with "
    "self.forward_training(td, action, logits, value)."
)

CHECKS = (
    Check(
        "determinism",
        "Are the outputs the same twice, and does the same seed give the same weights and actions?",
        "Learning compares random numbers with other random numbers, and no run can be repeated.",
        "Draw with torch's generator, which the run seeds, not with NumPy's, Python's, or one of your own.",
        ("forward_inference", "forward", "get_action_and_value"),
        determinism,
        needs_learning=False,
    ),
    Check(
        "modes",
        "Do acting and learning work, and give the same numbers in train(), in eval() and without gradients?",
        "Evaluation shows another policy than the one that is trained, and PPO takes the difference for progress.",
        "Take out what behaves differently in training: dropout (nn.LSTM(dropout=…) too), BatchNorm, and branches on "
        "self.training.",
        ("forward", "get_action_and_value", "evaluate_actions"),
        modes,
        needs_learning=False,
    ),
)
