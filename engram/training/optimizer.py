"""The optimiser: Adam, AdamW or Muon, and one gradient step, clipped, with the weights kept in range after it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from engram.agent.metta_agent import MettaAgent
from engram.agent.weights import weight_layers
from engram.settings import UserError
from engram.training.settings import Optimizer as OptimizerSettings


def make_optimizer(agent: MettaAgent, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """One over all parameters. Muon takes the matrices of hidden layers, and AdamW everything else."""
    options = {**_adam_options(settings), "fused" if settings.fused else "foreach": True}
    if settings.type == "adam":
        return torch.optim.Adam(agent.parameters(), **options)
    if settings.type == "adamw":
        return torch.optim.AdamW(agent.parameters(), **options)
    matrices = hidden_matrices(agent)
    chosen = {id(matrix) for matrix in matrices}
    others = [parameter for parameter in agent.parameters() if id(parameter) not in chosen]
    adamw = torch.optim.AdamW(others, **options)
    return Together([_make_muon(matrices, settings), adamw]) if matrices else adamw


def hidden_matrices(agent: MettaAgent) -> list[nn.Parameter]:
    """The weights of Linear and recurrent layers, but for those that give logits or values: one row for each of them.

    Embeddings, biases and convolutions are not among them: Muon is for maps from features to features.
    """
    outputs = (1, agent.action_space.logits)
    weights = [weight for layer in weight_layers(agent) for weight in layer.parameters.values()]
    return [weight for weight in weights if weight.dim() == 2 and weight.shape[0] not in outputs]


def set_options(optimizer: torch.optim.Optimizer, settings: OptimizerSettings) -> None:
    """Give an optimiser the rates of these settings, which may be scheduled."""
    for group in optimizer.param_groups:
        group.update(_muon_options(settings) if "momentum" in group else _adam_options(settings))


class Together(torch.optim.Optimizer):
    """Several optimisers of different parameters as one: their groups and their state are this one's own."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = tuple(optimizers)
        super().__init__([group for each in optimizers for group in each.param_groups], {})
        self._share()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for each in self.optimizers:
            each.step(closure)

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        self._share()  # loading makes new ones

    def _share(self) -> None:
        groups = iter(self.param_groups)
        for each in self.optimizers:
            each.param_groups = [next(groups) for _ in each.param_groups]
            each.state = self.state


class Norms(NamedTuple):
    """Gradient norms before clipping."""

    norm: Tensor
    norm_recurrent: Tensor


def optimise(agent: MettaAgent, optimizer: torch.optim.Optimizer, settings: OptimizerSettings) -> Norms:
    """Clip the gradient, step, clip the weights."""
    norms = clip_gradient(agent, settings.max_grad_norm)
    optimizer.step()
    agent.clip_weights()
    return norms


def clip_gradient(agent: MettaAgent, most: float) -> Norms:
    """Scale the gradient down to this norm if it is larger. As `clip_grad_norm_`, with both norms from one pass."""
    gradients = {id(p): p.grad for p in agent.parameters() if p.grad is not None}
    if not gradients:
        return Norms(torch.zeros(()), torch.zeros(()))
    each = dict(zip(gradients, torch._foreach_norm(list(gradients.values())), strict=True))
    recurrent = [each[id(p)] for p in agent.recurrent_parameters() if id(p) in each]
    total = torch.linalg.vector_norm(torch.stack(list(each.values())))
    torch._foreach_mul_(list(gradients.values()), (most / (total + 1e-6)).clamp(max=1.0))
    return Norms(total, torch.linalg.vector_norm(torch.stack(recurrent)) if recurrent else torch.zeros_like(total))


def _adam_options(settings: OptimizerSettings) -> dict[str, Any]:
    return {
        "lr": settings.learning_rate,
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
    }


def _muon_options(settings: OptimizerSettings) -> dict[str, Any]:
    return {"lr": settings.learning_rate, "momentum": settings.momentum, "weight_decay": settings.weight_decay}


def _make_muon(matrices: list[nn.Parameter], settings: OptimizerSettings) -> torch.optim.Optimizer:
    try:
        from engram.training.muon import make_muon
    except ImportError:
        raise UserError("trainer.optimizer.type: muon comes with torch 2.9 and later: upgrade torch") from None
    return make_muon(matrices, **_muon_options(settings))
