"""The first layer at which acting and learning differ, within one step and without memory."""

# N numbers

import torch
from torch import Tensor, nn

from engram.audit.adapters.base import PolicyAdapter
from engram.audit.context import AuditContext
from engram.audit.difference import max_difference, tolerance
from engram.audit.scenario import play

SMALL_PART = 0.02  # of the size of outputs: what a lower precision changes at most
Calls = dict[str, tuple[Tensor, Tensor]]


@torch.no_grad()
def first_difference(audit: AuditContext) -> str:
    """The first layer with other inputs or outputs in learning than in acting; empty if there is none.

    A segment of one step is compared, and if that is right, the first of two steps.
    """
    return next((found for steps in (1, 2) if (found := _first_difference(audit, steps))), "")


def _first_difference(audit: AuditContext, steps: int) -> str:
    scenario = audit.scenario(76, steps=steps)
    acting, learning = audit.adapter(own_mode=True), audit.adapter(own_mode=True)
    acted, learned = _record(acting), _record(learning)
    played = play(acting, scenario)
    replayed = learning.learn(scenario.segment(played.actions))
    apart, apart_in_log_prob = (
        max_difference(getattr(played, name)[:, 0], getattr(replayed, name)[:, 0]) for name in ("value", "log_prob")
    )
    if max(apart, apart_in_log_prob) <= tolerance(played.value):
        return ""
    when = ", even in the first step" if steps == 1 else ", in segments of several steps"
    slightly = 0 < apart <= SMALL_PART * float(played.value.abs().max())
    how = ", slightly: as with a lower precision in one of the two" if slightly else ""
    for name in [name for name in acted if name in learned]:
        (given, out), (given_too, out_too) = acted[name], learned[name]
        if _differ(given, given_too, audit.rows, steps):
            return f"what {name} is given differs between acting and learning{how}{when}"
        if _differ(out, out_too, audit.rows, steps):
            return f"{name} computes something else in learning than in acting{how}{when}"
    return f"what is made of the last layer's outputs differs between acting and learning{how}{when}"


def _record(adapter: PolicyAdapter) -> Calls:
    """The first inputs and outputs of every layer, in the order of its calls; filled in when the policy is called."""
    calls: Calls = {}

    def hook(name: str) -> object:
        def keep(layer: nn.Module, given: tuple, out: object) -> None:
            first = out[0] if isinstance(out, tuple) else out
            if given and isinstance(given[0], Tensor) and isinstance(first, Tensor) and name not in calls:
                calls[name] = given[0].float().flatten(), first.float().flatten()

        return keep

    for name, layer in adapter.policy.named_modules():
        if name and not isinstance(layer, nn.Sequential):
            layer.register_forward_hook(hook(name))
    return calls


def _differ(acted: Tensor, learned: Tensor, rows: int, steps: int) -> bool:
    """Whether neither the first step of rows, nor the rows of the first step, are what acting has."""
    if len(learned) != steps * len(acted) or len(acted) % rows:
        return len(learned) != len(acted) or max_difference(acted, learned) > tolerance(acted)
    layouts = learned.view(rows, steps, -1)[:, 0], learned.view(steps, rows, -1)[0]
    return all(max_difference(acted.view(rows, -1), each) > tolerance(acted) for each in layouts)
