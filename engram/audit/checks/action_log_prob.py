"""Actions: is the stored log-probability that of the stored action, and can every action be sampled?"""

# N rows, A actions

from collections.abc import Iterator

import torch
from gymnasium import spaces
from torch import Tensor

from engram.agent.actions import CategoricalActions, MultiCategoricalActions, make_actions
from engram.audit.adapters.base import PolicyOutput
from engram.audit.context import AuditContext
from engram.audit.difference import max_difference, tolerance
from engram.audit.result import Check, Verdict
from engram.audit.scenario import random_actions
from engram.audit.weights import scale_outputs, scale_weights

ROWS, STEPS = 128, 6
FEWEST_EXPECTED = 20  # an action expected this often is not missing by chance
MAX_DEVIATION = 6.0  # standard deviations
# Factors on the weights, and on those of output layers besides.
USUAL = (1.0, 1.0)
USUAL_AND_SHARPER = (USUAL, (3.0, 1.0), (3.0, 10.0))


def action_log_prob(audit: AuditContext) -> Verdict:
    problems: list[str] = []
    bound = 1e-4
    with torch.no_grad():
        measured = 0.0
        for factors in USUAL_AND_SHARPER:
            acted = _act(audit, *factors)
            problems += _drawn(audit, acted)
            if factors != USUAL and isinstance(audit.spec.single_action_space, spaces.Box):
                continue  # actions at their bounds may have infinite densities
            error, found = _of_the_action(audit, _joined(acted))
            problems += [f"acting: {problem}" for problem in found]
            measured = max(measured, error)
            if not audit.learning_error:
                error, found = _in_learning(audit, *factors)
                problems += [f"learning: {problem}" for problem in found]
                measured = max(measured, error)
            if problems:
                break
    finding = (
        "; ".join(problems)
        or "log-probabilities are those of the actions, probabilities add up to 1, actions come as often as they say"
    )
    return Verdict(not problems, measured, bound, finding, cause=problems[0] if problems else "")


def _act(audit: AuditContext, weights: float, outputs: float) -> list[PolicyOutput]:
    """Steps of many rows, with weights of this size: the distributions of a new policy are nearly uniform."""
    adapter, scenario = audit.adapter(original_weights=True), audit.scenario(110, rows=ROWS, steps=STEPS)
    adapter.fixed_sampling = False
    scale_weights(adapter, weights)
    scale_outputs(adapter, outputs)
    torch.manual_seed(audit.seed)
    return [adapter.act(scenario.batch(slice(0, ROWS), step)) for step in range(STEPS)]


def _joined(outputs: list[PolicyOutput]) -> PolicyOutput:
    """Several steps of the same rows as one step of many rows."""
    value, log_prob, actions = (
        torch.cat([getattr(a, name) for a in outputs]) for name in ("value", "log_prob", "actions")
    )
    full = [output.full for output in outputs if output.full is not None]
    return PolicyOutput(value, log_prob, actions, torch.cat(full) if full else None)


def _of_the_action(audit: AuditContext, output: PolicyOutput) -> tuple[float, list[str]]:
    """The largest relative error of a log-probability, where the whole distribution is known, and what is wrong."""
    actions, log_prob, full = output.actions, output.log_prob, output.full
    problems = []
    if not bool(log_prob.isfinite().all()):
        problems.append("log-probabilities are not finite")
    if not _possible(audit, actions):
        problems.append(f"actions are not in {audit.spec.single_action_space}")
    space = make_actions(audit.spec)
    if (
        full is None
        or not isinstance(space, CategoricalActions | MultiCategoricalActions)
        or full.shape[-1] != space.logits
        or problems
    ):
        return 0.0, problems
    rows = full.reshape(-1, space.logits)
    parts = rows.split(space.sizes, -1) if isinstance(space, MultiCategoricalActions) else [rows]
    total = max(max_difference(part.exp().sum(-1), torch.ones(len(rows))) for part in parts)
    if total > 1e-3:
        problems.append(f"probabilities of all actions add up to something {total:.2g} away from 1")
        return total, problems
    evaluated = space.evaluate(rows, actions.reshape(-1, *audit.spec.single_action_space.shape))
    error = max_difference(evaluated.log_prob, log_prob.reshape(-1))
    if error > tolerance(log_prob, exact=1e-4):
        problems.append(f"the log-probability is not that of the action: off by {error:.2g}")
    if output.entropy is not None:
        entropy = torch.stack([-(part.exp() * part).sum(-1) for part in parts]).sum(0)
        difference = max_difference(entropy, output.entropy.reshape(-1))
        if difference > 1e-3:
            problems.append(f"the entropy is not that of the distribution: off by {difference:.2g}")
    return error / tolerance(log_prob, exact=1.0), problems


def _possible(audit: AuditContext, actions: Tensor) -> bool:
    space = audit.spec.single_action_space
    if isinstance(space, spaces.Discrete):
        return bool(((actions >= 0) & (actions < int(space.n))).all())
    if isinstance(space, spaces.MultiDiscrete):
        return bool(((actions >= 0) & (actions < torch.as_tensor(space.nvec))).all())
    return bool(actions.isfinite().all())


def _drawn(audit: AuditContext, acted: list[PolicyOutput]) -> Iterator[str]:
    """Actions are sampled as often as their probabilities imply."""
    if isinstance(audit.spec.single_action_space, spaces.Box):
        actions = torch.cat([output.actions.reshape(ROWS, -1) for output in acted])
        if bool((actions.std(0) == 0).any()):
            yield "the same continuous action is drawn every time"
        return
    space = make_actions(audit.spec)
    if not isinstance(space, CategoricalActions) or any(output.full is None for output in acted):
        return
    probabilities = torch.cat([output.full.exp() for output in acted if output.full is not None])
    if probabilities.shape[-1] != space.logits:
        return
    drawn = torch.cat([space.to_index(output.actions) for output in acted])
    counts = torch.bincount(drawn, minlength=space.logits).float()
    expected, spread = probabilities.sum(0), (probabilities * (1 - probabilities)).sum(0).sqrt()
    never = [i for i in range(space.logits) if counts[i] == 0 and expected[i] >= FEWEST_EXPECTED]
    if never:
        often = [round(float(expected[i])) for i in never]
        yield f"actions {never} are never drawn, though expected {often} times of {len(drawn)}"
    elif bool(((counts - expected).abs() > MAX_DEVIATION * spread + 1).any()):
        odd = int(((counts - expected).abs() - MAX_DEVIATION * spread).argmax())
        yield f"action {odd} is drawn {int(counts[odd])} times where {float(expected[odd]):.0f} are expected"
    elif abs(excess := _excess_log_prob(probabilities, drawn)) > MAX_DEVIATION:
        which = "likelier (a lower temperature?)" if excess > 0 else "less likely (a higher temperature?)"
        yield f"drawn actions are {which} than their probabilities say, by {abs(excess):.1f} standard deviations"


def _excess_log_prob(probabilities_NA: Tensor, drawn_N: Tensor) -> float:
    """By how many standard deviations the log-probabilities of drawn actions are above their expectation."""
    log_probs = probabilities_NA.clamp(min=1e-12).log()
    mean = (probabilities_NA * log_probs).sum(-1)
    variance = (probabilities_NA * (log_probs - mean.unsqueeze(-1)).square()).sum(-1)
    excess = (log_probs.gather(-1, drawn_N.view(-1, 1)).squeeze(-1) - mean).sum()
    return float(excess / variance.sum().sqrt().clamp(min=1e-6))


def _in_learning(audit: AuditContext, weights: float, outputs: float) -> tuple[float, list[str]]:
    """What `_of_the_action` returns for a learning call, whose random actions are unlikely ones too."""
    segment = audit.segment(111)
    actions = random_actions(audit.spec, segment.shape, audit.generator(113))
    adapter = audit.adapter(original_weights=True)
    scale_weights(adapter, weights)
    scale_outputs(adapter, outputs)
    output = adapter.learn(type(segment)(segment.observations, segment.dones, segment.truncateds, actions))
    return _of_the_action(audit, output)


CHECKS = (
    Check(
        "action_log_prob",
        "Is the log-probability that of the action, do probabilities add up to 1, and does every action come as "
        "often as it says?",
        "PPO raises and lowers the probability of other actions than those that were taken.",
        "Draw from the same distribution that gives the log-probability: self.forward_inference(td, logits, value) "
        "and self.forward_training(td, action, logits, value) do both. Several choices at once: add their "
        "log-probabilities.",
        ("forward_inference", "forward_training", "forward", "get_action_and_value"),
        action_log_prob,
        needs_learning=False,
    ),
)
