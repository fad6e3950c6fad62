"""Muon with float32 matrix products on CPUs. A separate module, because torch 2.8 has no Muon to import."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Muon


def make_muon(matrices: list[nn.Parameter], lr: float, momentum: float, weight_decay: float) -> torch.optim.Optimizer:
    """Scales steps to the size of AdamW's, so that one learning rate suits both."""
    muon = Float32Muon if matrices[0].device.type == "cpu" else Muon
    return muon(matrices, lr=lr, momentum=momentum, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")


class Float32Muon(Muon):
    """Muon without bfloat16, which takes about thirty times as long on CPUs without hardware support."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                momentum = self.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))
                momentum.lerp_(parameter.grad, 1 - group["momentum"])
                nesterov = parameter.grad.lerp(momentum, group["momentum"])
                update = orthogonalize(nesterov, group["ns_coefficients"], group["ns_steps"], group["eps"])
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-group["lr"] * 0.2 * math.sqrt(max(parameter.shape)))


def orthogonalize(matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Approximate the nearest matrix whose singular values are all 1, by Newton-Schulz iteration."""
    a, b, c = coefficients
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
