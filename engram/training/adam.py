"""Adam and AdamW: PyTorch's, which on CPUs clip and step in one call of a kernel for all parameters."""

from typing import Any

import torch
from torch import Tensor

from engram.native import adam as native
from engram.native import library


class Adam(torch.optim.Adam):
    """Its state and its options are those of PyTorch's."""

    _kernel: native.Adam | None = None

    def clip_and_step(self, most: float) -> Tensor:
        """Scale the gradient of all parameters down to this norm if it is larger, and step. The norm that each had."""
        group, *others = self.param_groups
        kernel = self._ready(group["params"]) if group["fused"] and not others else None
        if kernel is None:
            norms = clip_gradient(group["params"], most)
            self.step()
            return norms
        options = (group["lr"], *group["betas"], group["eps"], group["weight_decay"])
        gradients = [parameter.grad for parameter in group["params"]]
        return kernel.step(gradients, most, *options, decoupled=group["decoupled_weight_decay"])

    def _ready(self, parameters: list[Tensor]) -> native.Adam | None:
        """The kernel for these; None if they are of another kind, and before the first step, which makes the state."""
        if library.kernels() is None or not all(parameter in self.state for parameter in parameters):
            return None
        if self._kernel is None or not self._kernel.holds(parameters):
            remembered = ([self.state[p][name] for p in parameters] for name in ("exp_avg", "exp_avg_sq", "step"))
            self._kernel = native.Adam(native.Arrays(parameters, *remembered))
        return self._kernel if self._kernel.usable else None

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._kernel = None


def clip_gradient(parameters: list[Tensor], most: float) -> Tensor:
    """Scale all gradients down to this norm if it is larger, as `clip_grad_norm_` does. The norm that each had."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros(len(parameters))
    each, none = iter(torch._foreach_norm(gradients)), gradients[0].new_zeros(())
    norms = torch.stack([none if p.grad is None else next(each) for p in parameters])
    torch._foreach_mul_(gradients, (most / (torch.linalg.vector_norm(norms) + 1e-6)).clamp(max=1.0))
    return norms
