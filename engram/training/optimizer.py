"""The optimiser: Adam, AdamW or Muon, and one gradient step, clipped, with the weights kept in range after it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from engram.agent.metta_agent import MettaAgent
from engram.agent.weights import weight_layers
from engram.settings import UserError
from engram.training.adam import Adam, clip_gradient
from engram.training.settings import Optimizer as OptimizerSettings


def make_optimizer(agent: MettaAgent, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """One over all parameters. Muon takes the matrices of hidden layers, and AdamW everything else."""
    options = {**_adam_options(settings), "fused" if settings.fused else "foreach": True}
    if settings.type != "muon":
        return Adam(agent.parameters(), decoupled_weight_decay=settings.type == "adamw", **options)
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


class OptimizerStep:
    """One gradient step: the gradient is clipped, and the weights are kept in range after it."""

    def __init__(self, agent: MettaAgent, optimizer: torch.optim.Optimizer) -> None:
        self.agent, self.optimizer = agent, optimizer
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        recurrent = {id(parameter) for parameter in agent.recurrent_parameters()}
        places = [i for i, parameter in enumerate(self._parameters) if id(parameter) in recurrent]
        self._recurrent = torch.tensor(places, dtype=torch.long, device=self._parameters[0].device)

    def __call__(self, settings: OptimizerSettings) -> Norms:
        if isinstance(self.optimizer, Adam):
            norms = self.optimizer.clip_and_step(settings.max_grad_norm)
        else:
            norms = clip_gradient(self._parameters, settings.max_grad_norm)
            self.optimizer.step()
        self.agent.clip_weights()
        return Norms(torch.linalg.vector_norm(norms), torch.linalg.vector_norm(norms[self._recurrent]))


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
