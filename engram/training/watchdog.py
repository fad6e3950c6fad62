"""The watchdog: stops a run on NaNs, replay errors and exploding gradients."""

import math
from collections import deque
from statistics import median
from typing import TYPE_CHECKING

import torch
from torch import nn

from engram.settings import UserError
from engram.training.settings import Trainer

if TYPE_CHECKING:
    from engram.training.metrics import Record

REPLAY_ERROR_BOUNDS = {"float32": 1e-3, "bfloat16": 0.1}  # above the rounding errors of log-probabilities
HISTORY, MIN_HISTORY = 100, 20  # epochs in the median of gradient norms, and epochs it needs
PATIENCE = 5  # epochs in a row above the bound


class TrainingStoppedError(UserError):
    """Training went wrong and was stopped; the last good checkpoint is kept."""

    exit_code = 1


def check_health(record: "Record", agent: nn.Module, settings: Trainer) -> None:
    """Raise if a metric is not finite, or if replay does not reproduce the log-probabilities of the rollout."""
    for name, value in record.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise TrainingStoppedError(
                f"epoch {record['epoch']}: {name} is {value}. {_first_bad_tensor(agent)} This epoch was not saved."
            )
    error = record.get("memory/replay_error", 0.0)
    bound = settings.replay_error_bound or REPLAY_ERROR_BOUNDS[settings.precision]
    if error > bound:
        raise TrainingStoppedError(
            f"epoch {record['epoch']}: replaying the rollout gave log-probabilities that differ by {error:.2e} from "
            f"those of acting (bound: trainer.replay_error_bound={bound:g}). The policy has different memory in "
            "learning than in acting, or random layers (dropout), so its gradients would be wrong: "
            "`engram audit` finds out which."
        )


class ExplosionGuard:
    """Stops a run whose gradient norm is far above its median for several epochs in a row."""

    def __init__(self) -> None:
        self.norms: deque[float] = deque(maxlen=HISTORY)
        self.above = 0  # epochs in a row

    def check(self, record: "Record", agent: nn.Module, settings: Trainer) -> None:
        norm = record.get("gradient/norm")
        if norm is None or settings.gradient_bound is None:
            return
        typical = median(self.norms) if len(self.norms) >= MIN_HISTORY else math.inf
        self.above = self.above + 1 if norm > settings.gradient_bound * typical else 0
        self.norms.append(norm)
        if self.above >= PATIENCE:
            raise TrainingStoppedError(
                f"epoch {record['epoch']}: the gradient norm is {norm:.3g}; for {PATIENCE} epochs it was more than "
                f"trainer.gradient_bound ({settings.gradient_bound:g}) times the median of {typical:.3g}. "
                f"{_largest_gradient(agent)} A lower trainer.optimizer.learning_rate may help; "
                "trainer.gradient_bound=null disables this check."
            )

    def state(self) -> dict[str, object]:
        return {"norms": list(self.norms), "above": self.above}

    def load_state(self, state: dict) -> None:
        self.norms.extend(state["norms"])
        self.above = state["above"]


def _largest_gradient(agent: nn.Module) -> str:
    """Name the module with the largest gradient; clipping does not change the proportions."""
    squares: dict[str, float] = {}
    for name, parameter in agent.named_parameters():
        if parameter.grad is not None:
            module = name.rpartition(".")[0]
            squares[module] = squares.get(module, 0.0) + parameter.grad.square().sum().item()
    if not squares or not sum(squares.values()):
        return "No parameter has a gradient."
    largest = max(squares, key=squares.__getitem__)
    share = squares[largest] / sum(squares.values())
    return f"The largest gradient is in {largest}: {share:.0%} of the squared norm."


def _first_bad_tensor(agent: nn.Module) -> str:
    for name, parameter in agent.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"The first weight that is not finite: {name}."
        if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
            return f"The first gradient that is not finite: that of {name}."
    return (
        "All weights and gradients are finite, so an intermediate value overflowed: a lower "
        "trainer.optimizer.learning_rate or smaller rewards may help."
    )
