"""The weights of a policy: scaled, perturbed or in float64, since initial ones hide faults; and their gradients."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import torch
from gymnasium.spaces import Box
from torch import Tensor, nn

from engram.agent.actions import make_actions
from engram.audit.adapters.base import PolicyAdapter, Segment
from engram.audit.scenario import Scenario


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


Observed = TypeVar("Observed", Segment, Scenario)


@contextmanager
def double_precision(adapter: PolicyAdapter) -> Iterator[None]:
    """Within this context, the adapter's policy has float64 weights, and new tensors are float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    adapter.to(torch.float64)
    handles = [part.register_forward_pre_hook(_to_weight_dtype) for part in adapter.policy.modules()]
    try:
        yield
    finally:
        torch.set_default_dtype(before)
        for handle in handles:
            handle.remove()


def _to_weight_dtype(module: nn.Module, given: tuple) -> tuple:
    """Inputs in the dtype of a layer's weights: a policy may turn observations into float32."""
    weight = next(module.parameters(recurse=False), None)
    if weight is None or not given or not isinstance(given[0], Tensor) or not given[0].is_floating_point():
        return given
    return (given[0].to(weight.dtype), *given[1:])


def doubled(played: Observed) -> Observed:
    """The same with float64 observations, if they are floating-point numbers at all."""
    if not played.observations.is_floating_point():
        return played
    return replace(played, observations=played.observations.double())


def trainable(policy: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in policy.named_parameters() if parameter.requires_grad}


def gradients_of(total: Tensor, parameters: Mapping[str, Tensor], retain_graph: bool = False) -> dict[str, Tensor]:
    """The gradient of a number by each of these parameters; zeros where it does not depend on one."""
    if not total.requires_grad:
        return {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    found = torch.autograd.grad(total, list(parameters.values()), retain_graph=retain_graph, allow_unused=True)
    return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(parameters.items(), found, strict=True)}
