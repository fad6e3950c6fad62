"""Float64: a copy of a policy in double precision, for finite differences and comparisons."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from engram.audit.adapters.base import PolicyAdapter, Segment
from engram.audit.scenario import Scenario

Observed = TypeVar("Observed", Segment, Scenario)


@contextmanager
def double_precision(adapter: PolicyAdapter) -> Iterator[None]:
    """Within this, the adapter's policy has float64 weights, and new tensors are float64."""
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
