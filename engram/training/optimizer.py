"""Optimisers (Adam, AdamW, Muon), and the optimiser step: clip the gradient, step, clip the weights."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from engram.agent.metta_agent import MettaAgent
from engram.agent.weights import weight_layers
from engram.training.settings import Optimizer as OptimizerSettings

NEWTON_SCHULZ, NEWTON_SCHULZ_STEPS = (3.4445, -4.7750, 2.0315), 5  # Keller Jordan's coefficients for Muon


def make_optimizer(agent: MettaAgent, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """An optimiser of all parameters. With Muon, hidden matrices use Muon and all other parameters AdamW."""
    options = {**_adam_options(settings), "fused" if settings.fused else "foreach": True}
    if settings.type != "muon":
        optimizer = torch.optim.AdamW if settings.type == "adamw" else torch.optim.Adam
        return optimizer(agent.parameters(), **options)
    matrices = hidden_matrices(agent)
    matrix_ids = {id(matrix) for matrix in matrices}
    others = [parameter for parameter in agent.parameters() if id(parameter) not in matrix_ids]
    adamw = torch.optim.AdamW(others, **options)
    return CombinedOptimizer([Muon(matrices, **_muon_options(settings)), adamw]) if matrices else adamw


def hidden_matrices(agent: MettaAgent) -> list[nn.Parameter]:
    """The weights of Linear and recurrent layers, except output layers, which have one row per logit or value.

    Muon is for maps from features to features, so embeddings, biases and convolutions are left to AdamW.
    """
    outputs = (1, agent.action_space.logits)
    weights = [weight for layer in weight_layers(agent) for weight in layer.parameters.values()]
    return [weight for weight in weights if weight.dim() == 2 and weight.shape[0] not in outputs]


def set_options(optimizer: torch.optim.Optimizer, settings: OptimizerSettings) -> None:
    """Apply the current learning rate and other options, which may be scheduled."""
    for group in optimizer.param_groups:
        group.update(_muon_options(settings) if "momentum" in group else _adam_options(settings))


class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum: every update of a matrix has singular values near 1.

    Steps have the size of AdamW's, so that one learning rate suits both. `torch.optim.Muon` computes the same, but
    needs torch 2.9 and multiplies in bfloat16, which takes thirty times as long on CPUs without hardware for it.
    """

    def __init__(self, matrices: Sequence[nn.Parameter], lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                momentum = self.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))
                momentum.lerp_(parameter.grad, 1 - group["momentum"])
                update = orthogonalize(parameter.grad.lerp(momentum, group["momentum"]))
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-group["lr"] * 0.2 * math.sqrt(max(parameter.shape)))


def orthogonalize(matrix: Tensor) -> Tensor:
    """Approximate the nearest matrix whose singular values are all 1, by Newton-Schulz iteration."""
    a, b, c = NEWTON_SCHULZ
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix if matrix.device.type == "cpu" else matrix.bfloat16()
    x = x.T if tall else x
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.T if tall else x).to(matrix.dtype)


class CombinedOptimizer(torch.optim.Optimizer):
    """Several optimisers of different parameters as one, which owns their parameter groups and state."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = tuple(optimizers)
        super().__init__([group for optimizer in optimizers for group in optimizer.param_groups], {})
        self._share()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for optimizer in self.optimizers:
            optimizer.step(closure)

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        self._share()  # loading replaces groups and state

    def _share(self) -> None:
        groups = iter(self.param_groups)
        for optimizer in self.optimizers:
            optimizer.param_groups = [next(groups) for _ in optimizer.param_groups]
            optimizer.state = self.state


class Norms(NamedTuple):
    """Gradient norms before clipping."""

    norm: Tensor
    norm_recurrent: Tensor


class OptimizerStep:
    """Clips the gradient, steps the optimiser, and clips the weights."""

    def __init__(self, agent: MettaAgent, optimizer: torch.optim.Optimizer) -> None:
        self.agent, self.optimizer = agent, optimizer
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        recurrent = {id(parameter) for parameter in agent.recurrent_parameters()}
        indices = [i for i, parameter in enumerate(self._parameters) if id(parameter) in recurrent]
        self._recurrent = torch.tensor(indices, dtype=torch.long, device=self._parameters[0].device)

    def norms(self) -> Norms:
        """The norms of the current gradient."""
        norms = gradient_norms(self._parameters)
        return Norms(torch.linalg.vector_norm(norms), torch.linalg.vector_norm(norms[self._recurrent]))

    def __call__(self, settings: OptimizerSettings, norms: Norms | None = None) -> Norms:
        """Take a step. `norms`: those of this gradient, if they are known already."""
        norms = norms or self.norms()
        divisor = ((norms.norm + 1e-6) / settings.max_grad_norm).clamp(min=1.0)  # as in clip_grad_norm_
        if isinstance(self.optimizer, torch.optim.Adam) and self.optimizer.param_groups[0]["fused"]:
            # A fused step divides the gradient itself, which saves a pass over it. Torch reads this attribute.
            self.optimizer.grad_scale = divisor  # type: ignore[attr-defined]
            self.optimizer.step()
            self.optimizer.grad_scale = None  # type: ignore[attr-defined]
        else:
            torch._foreach_div_([p.grad for p in self._parameters if p.grad is not None], divisor)
            self.optimizer.step()
        self.agent.clip_weights()
        return norms


def gradient_norms(parameters: Sequence[Tensor]) -> Tensor:
    """The norm of each parameter's gradient; zero if it has none."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if len(gradients) == len(parameters):
        return torch.stack(torch._foreach_norm(gradients))
    return torch.stack([parameters[0].new_zeros(()) if p.grad is None else p.grad.norm() for p in parameters])


def _adam_options(settings: OptimizerSettings) -> dict[str, Any]:
    return {
        "lr": settings.learning_rate,
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
    }


def _muon_options(settings: OptimizerSettings) -> dict[str, Any]:
    return {"lr": settings.learning_rate, "momentum": settings.momentum, "weight_decay": settings.weight_decay}
