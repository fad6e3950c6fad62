"""Muon for CPUs: that of torch, its matrix iteration in float32 instead of bfloat16."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Muon


def make_muon(matrices: list[nn.Parameter], lr: float, momentum: float, weight_decay: float) -> torch.optim.Optimizer:
    """Steps are as large as those of AdamW, so that one learning rate suits both."""
    kind = Float32Muon if matrices[0].device.type == "cpu" else Muon
    return kind(matrices, lr=lr, momentum=momentum, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")


class Float32Muon(Muon):
    """CPUs without units for bfloat16 need some thirty times as long for the same step."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                average = self.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))
                average.lerp_(parameter.grad, 1 - group["momentum"])
                ahead = parameter.grad.lerp(average, group["momentum"])  # Nesterov
                update = orthogonalised(ahead, group["ns_coefficients"], group["ns_steps"], group["eps"])
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-group["lr"] * 0.2 * math.sqrt(max(parameter.shape)))


def orthogonalised(matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Near the closest matrix with singular values of 1, by a Newton-Schulz iteration."""
    a, b, c = coefficients
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
