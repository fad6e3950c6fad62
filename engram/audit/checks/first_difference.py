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
    """Which layer gets other inputs, or computes something else, in a segment of one step than in acting."""
    scenario = audit.scenario(76, steps=1)
    acting, learning = audit.adapter(own_mode=True), audit.adapter(own_mode=True)
    acted, learned = _record(acting), _record(learning)
    played = play(acting, scenario)
    replayed = learning.learn(scenario.segment(played.actions))
    apart = max_difference(played.value, replayed.value)
    if max(apart, max_difference(played.log_prob, replayed.log_prob)) <= tolerance(played.value):
        return ""
    slightly = 0 < apart <= SMALL_PART * float(played.value.abs().max())
    how = ", slightly: as with a lower precision in one of the two" if slightly else ""
    for name in [name for name in acted if name in learned]:
        (given, out), (given_too, out_too) = acted[name], learned[name]
        if _differ(given, given_too):
            return f"what {name} is given differs between acting and learning{how}, even in the first step"
        if _differ(out, out_too):
            return f"{name} computes something else in learning than in acting{how}, even in the first step"
    return f"what is made of the last layer's outputs differs between acting and learning{how}, even in the first step"


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


def _differ(one: Tensor, other: Tensor) -> bool:
    return one.shape != other.shape or max_difference(one, other) > tolerance(one)
