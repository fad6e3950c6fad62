"""The effect of memory on the outputs of a policy: of the past, a mere count of steps, a learned initial state."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engram.audit.adapters.base import PolicyAdapter
from engram.audit.difference import max_difference, tolerance
from engram.audit.scenario import Scenario, play, seed_everything
from engram.audit.weights import gradients_of, perturb_weights, trainable

if TYPE_CHECKING:
    from engram.audit.context import AuditContext

VISIBLE = 1e-3  # how much memory should change an output, for faults to show clearly
PASTS = (3, 24)  # steps of a past: short, before a memory saturates, and long, for a memory that changes slowly


def with_visible_memory(audit: "AuditContext") -> tuple[PolicyAdapter, float]:
    """The policy and the effect of its memory. If heads near zero hide memory, their weights are perturbed.

    Memory faults do not depend on the weights.
    """
    effect = past_effect(audit, audit.original)
    if effect >= VISIBLE:
        return audit.original, effect
    perturbed = audit.original.copy()
    perturb_weights(perturbed.policy, audit.generator(97))
    perturbed_effect = past_effect(audit, perturbed)
    return (perturbed, perturbed_effect) if perturbed_effect > effect else (audit.original, effect)


@torch.no_grad()
def past_effect(audit: "AuditContext", adapter: PolicyAdapter) -> float:
    """The change of the outputs for the same observation after two different pasts."""
    effect = 0.0
    for steps in PASTS:
        scenario = audit.scenario(96, steps=steps)
        other = scenario.with_other_past(slice(None), steps - 1, audit.generator(95), audit.spec)
        try:
            one, another = (_last_outputs(audit, adapter, each) for each in (scenario, other))
        except Exception:  # the checks report it
            return torch.inf
        effect = max(effect, max_difference(one, another))
    return effect


@torch.no_grad()
def clock_effect(audit: "AuditContext", adapter: PolicyAdapter) -> float:
    """The change of the outputs after pasts of different lengths. A memory may only count steps."""
    scenario = audit.scenario(96, steps=4)
    return max_difference(*(_last_outputs(audit, adapter, scenario.part(first)) for first in (0, 2)))


def _last_outputs(audit: "AuditContext", adapter: PolicyAdapter, scenario: Scenario) -> Tensor:
    copy = adapter.copy()
    copy.training_mode = False if audit.mode_matters else None
    seed_everything(audit.seed)
    return play(copy, scenario).numbers[:, -1]


def learned_start(audit: "AuditContext") -> str:
    """Names of parameters that affect outputs only at a flagged start: a learned initial state instead of zeros."""
    try:
        first, second = (audit.scenario(91, steps=2).batch(audit.every_row, step) for step in (0, 1))
        adapter = audit.adapter()
        unflagged = adapter.act(first).numbers()
        used = _used_parameters(adapter, adapter.act(second).numbers())
        adapter.reset()
        flagged = adapter.act(replace(first, dones=torch.ones_like(first.dones))).numbers()
        used_at_start = _used_parameters(adapter, flagged)
    except Exception:  # the checks report it
        return ""
    differs = max_difference(unflagged.detach(), flagged.detach()) > tolerance(flagged.detach())
    return ", ".join(sorted(used_at_start - used)) if differs else ""


def _used_parameters(adapter: PolicyAdapter, output: Tensor) -> set[str]:
    """Names of the parameters that an output depends on."""
    gradients = gradients_of(output.sum(), trainable(adapter.policy))
    return {name for name, gradient in gradients.items() if bool(gradient.any())}
