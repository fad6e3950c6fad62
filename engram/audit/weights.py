"""Changes the weights of a policy, since its initial weights can hide a fault."""

import torch
from gymnasium.spaces import Box
from torch import nn

from engram.agent.actions import make_actions
from engram.audit.adapters.base import PolicyAdapter


def scale_weights(adapter: PolicyAdapter, factor: float) -> None:
    """Multiply every weight matrix."""
    with torch.no_grad():
        for parameter in adapter.policy.parameters():
            if parameter.dim() > 1:
                parameter.mul_(factor)


@torch.no_grad()
def scale_outputs(adapter: PolicyAdapter, factor: float) -> None:
    """Multiply the weights of layers that give values or logits, as training makes outputs larger.

    Those of continuous actions are left alone: their logits are the logarithms of standard deviations too.
    """
    space = make_actions(adapter.spec)
    sizes = {1} if isinstance(adapter.spec.single_action_space, Box) else {1, space.logits}
    for layer in adapter.policy.modules():
        if isinstance(layer, nn.Linear) and layer.out_features in sizes:
            layer.weight.mul_(factor)


@torch.no_grad()
def perturb_weights(policy: nn.Module, generator: torch.Generator) -> None:
    """Add noise to every weight, so that none is near zero."""
    for parameter in policy.parameters():
        inputs = parameter[0].numel() if parameter.dim() > 1 else 25
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
        parameter.add_((0.5 / max(inputs, 1) ** 0.5) * noise.to(parameter))


@torch.no_grad()
def jitter_weights(policy: nn.Module, generator: torch.Generator) -> None:
    """Change every weight by about one rounding of float32."""
    for parameter in policy.parameters():
        if parameter.is_floating_point():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.mul_(1 + torch.finfo(torch.float32).eps * noise.to(parameter))
