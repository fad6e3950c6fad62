"""The optimiser: one gradient step, clipped, with the weights kept in range after it."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from engram.agent.metta_agent import MettaAgent
from engram.training.settings import Optimizer as OptimizerSettings


def make_optimizer(module: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Adam or AdamW over all parameters, fused where the device can."""
    options = {
        "lr": settings.learning_rate,
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
        "foreach": True,
    }
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    return kinds[settings.type](module.parameters(), **options)


class Norms(NamedTuple):
    """Gradient norms before clipping."""

    norm: Tensor
    norm_recurrent: Tensor


def optimise(agent: MettaAgent, optimizer: torch.optim.Optimizer, loss: Tensor, settings: OptimizerSettings) -> Norms:
    """Backward, clip the gradient, step, clip the weights."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    recurrent = nn.utils.get_total_norm([p.grad for p in agent.recurrent_parameters() if p.grad is not None])
    norm = nn.utils.clip_grad_norm_(agent.parameters(), settings.max_grad_norm, foreach=True)
    optimizer.step()
    agent.clip_weights()
    return Norms(norm, recurrent)
