"""The watchdog: stops a run whose numbers went bad, and says which and why."""

import math

import torch
from torch import nn

from engram.settings import UserError
from engram.training.metrics import Record
from engram.training.settings import Trainer


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
    if error > settings.replay_error_bound:
        raise TrainingStoppedError(
            f"epoch {record['epoch']}: replaying the rollout gave log-probabilities that differ by {error:.2e} from "
            f"those it was played with (bound: trainer.replay_error_bound={settings.replay_error_bound:g}). The policy "
            "sees another memory in learning than in acting, so it would learn from the wrong past."
        )


def _first_bad_tensor(agent: nn.Module) -> str:
    for name, parameter in agent.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"The first tensor with a value that is not finite: {name}."
        if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
            return f"The first gradient with a value that is not finite: that of {name}."
    return "All weights and gradients are finite."
