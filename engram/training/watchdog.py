"""The watchdog: stops a run whose numbers went bad, and says which and why."""

import math
from collections import deque
from statistics import median

import torch
from torch import nn

from engram.settings import UserError
from engram.training.metrics import Record
from engram.training.settings import Trainer

REPLAY_ERROR_BOUNDS = {"float32": 1e-3, "bfloat16": 0.1}  # what rounding can do to a log-probability, and some more
HISTORY, ENOUGH, PATIENCE = 100, 20, 5  # epochs that a median is of, that it takes, and that may be above the bound


class TrainingStoppedError(UserError):
    """Training cannot sensibly go on; the last good checkpoint is still there."""

    exit_code = 1


def check_health(record: Record, agent: nn.Module, settings: Trainer) -> None:
    """Raise if a loss, a gradient or a weight is not finite, or if replay does not give back what was played."""
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
            f"those it was played with (bound: trainer.replay_error_bound={bound:g}). The policy sees another memory "
            "in learning than in acting, or is random by itself (dropout), so it would learn from the wrong past: "
            "`engram audit` tells which."
        )


class ExplosionGuard:
    """Stops a run whose gradient norm is far above what it used to be, for several epochs in a row."""

    def __init__(self) -> None:
        self.norms: deque[float] = deque(maxlen=HISTORY)
        self.above = 0  # epochs in a row

    def check(self, record: Record, agent: nn.Module, settings: Trainer) -> None:
        norm = record.get("gradient/norm")
        if norm is None or settings.gradient_bound is None:
            return
        usual = median(self.norms) if len(self.norms) >= ENOUGH else math.inf
        self.above = self.above + 1 if norm > settings.gradient_bound * usual else 0
        self.norms.append(norm)
        if self.above >= PATIENCE:
            raise TrainingStoppedError(
                f"epoch {record['epoch']}: the gradient norm is {norm:.3g}; for {PATIENCE} epochs it was more than "
                f"trainer.gradient_bound ({settings.gradient_bound:g}) times what is usual (a median of {usual:.3g}). "
                f"{_largest_gradient(agent)} A lower trainer.optimizer.learning_rate may help; "
                "trainer.gradient_bound=null goes on regardless."
            )

    def state(self) -> dict[str, object]:
        return {"norms": list(self.norms), "above": self.above}

    def load_state(self, state: dict) -> None:
        self.norms.extend(state["norms"])
        self.above = state["above"]


def _largest_gradient(agent: nn.Module) -> str:
    """The module whose own parameters have most of the gradient, which clipping leaves in proportion."""
    squares: dict[str, float] = {}
    for name, parameter in agent.named_parameters():
        if parameter.grad is not None:
            module = name.rpartition(".")[0]
            squares[module] = squares.get(module, 0.0) + parameter.grad.square().sum().item()
    if not squares or not sum(squares.values()):
        return "There is no gradient left to say where."
    largest = max(squares, key=squares.__getitem__)
    share = squares[largest] / sum(squares.values())
    return f"The largest gradient is in {largest}: {share:.0%} of the squared norm."


def _first_bad_tensor(agent: nn.Module) -> str:
    for name, parameter in agent.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"The first tensor with a value that is not finite: {name}."
        if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
            return f"The first gradient with a value that is not finite: that of {name}."
    return (
        "All weights and gradients are finite, so it grew too large between them: a lower "
        "trainer.optimizer.learning_rate or smaller rewards may help."
    )
