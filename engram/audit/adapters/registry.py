"""The adapter of a policy: by name, or recognised by the policy's methods."""

import inspect
from typing import Any

from torch import nn

from engram.agent.metta_agent import MettaAgent
from engram.agent.policies.base import Policy
from engram.audit.adapters.base import PolicyAdapter
from engram.audit.adapters.libraries import CleanRLAdapter, PufferLibAdapter, Sb3Adapter
from engram.audit.adapters.module import ModuleAdapter
from engram.audit.adapters.td import TdAdapter
from engram.env.spec import EnvSpec
from engram.settings import UserError

ADAPTERS: dict[str, type[PolicyAdapter]] = {
    "td": TdAdapter,
    "module": ModuleAdapter,
    "pufferlib": PufferLibAdapter,
    "cleanrl": CleanRLAdapter,
    "sb3": Sb3Adapter,
}
RECOGNISED_BY = {"get_action_and_value": "cleanrl", "forward_eval": "pufferlib", "evaluate_actions": "sb3"}


def adapt(policy: Any, spec: EnvSpec, adapter: str = "auto") -> PolicyAdapter:
    """The adapter for a policy. `auto` recognises it by its methods."""
    if isinstance(policy, MettaAgent):
        policy = policy.policy
    if not isinstance(policy, nn.Module) and isinstance(getattr(policy, "policy", None), nn.Module):
        policy = policy.policy  # an algorithm of sb3's holds its policy
    if not isinstance(policy, nn.Module):
        raise UserError(f"a {type(policy).__name__} cannot be audited: a policy is a torch.nn.Module")
    if adapter != "auto" and adapter not in ADAPTERS:
        raise UserError(f"adapter: unknown '{adapter}'; choose one of {', '.join(ADAPTERS)} or auto")
    return ADAPTERS[recognise(policy) if adapter == "auto" else adapter](policy.cpu(), spec)


def recognise(policy: nn.Module) -> str:
    """The name of the adapter that fits a policy's methods."""
    if isinstance(policy, Policy):
        return "td"
    for method, kind in RECOGNISED_BY.items():
        if callable(getattr(policy, method, None)):
            return kind
    parameters = list(inspect.signature(policy.forward).parameters)
    return "td" if parameters[:1] == ["td"] or "action" in parameters else "module"
