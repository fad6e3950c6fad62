"""The watchdog: stops a run on NaNs, replay errors and exploding gradients.

A loss or gradient that is NaN or infinite is traced to where it entered, and its minibatch is saved.
"""

import json
import logging
import math
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from safetensors.torch import save
from tensordict import TensorDictBase
from torch import Tensor, nn

from engram.settings import UserError
from engram.training.settings import Trainer

if TYPE_CHECKING:
    from engram.training.experience import Experience, Minibatch
    from engram.training.metrics import Record
    from engram.training.ppo import Losses

REPLAY_ERROR_BOUNDS = {"float32": 1e-3, "bfloat16": 0.1}  # above the rounding errors of log-probabilities
HISTORY, MIN_HISTORY = 100, 20  # epochs in the median of gradient norms, and epochs it needs
PATIENCE = 5  # epochs in a row above the bound
MAX_SKIPPED_IN_A_ROW = 10  # minibatches

log = logging.getLogger("engram")


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
        median_norm = median(self.norms) if len(self.norms) >= MIN_HISTORY else math.inf
        self.above = self.above + 1 if norm > settings.gradient_bound * median_norm else 0
        self.norms.append(norm)
        if self.above >= PATIENCE:
            raise TrainingStoppedError(
                f"epoch {record['epoch']}: the gradient norm is {norm:.3g}; for {PATIENCE} epochs it was more than "
                f"trainer.gradient_bound ({settings.gradient_bound:g}) times the median of {median_norm:.3g}. "
                f"{_largest_gradient(agent)} A lower trainer.optimizer.learning_rate may help; "
                "trainer.gradient_bound=null disables this check."
            )

    def state(self) -> dict[str, object]:
        return {"norms": list(self.norms), "above": self.above}

    def load_state(self, state: dict) -> None:
        self.norms.extend(state["norms"])
        self.above = state["above"]


class BadNumber(NamedTuple):
    """The first number of a minibatch that is NaN or infinite."""

    field: str
    value: float
    where: str  # what the field is, and the row and step if it has them


class NumberGuard:
    """Checks every minibatch for NaN and infinity before the optimiser step. Stops the run, or skips the minibatch."""

    def __init__(self, directory: Path | None, on_nan: Literal["stop", "skip"]) -> None:
        self.directory, self.on_nan = directory, on_nan
        self.skipped = 0
        self._skipped_in_a_row = 0

    def accepts(
        self,
        minibatch: "Minibatch",
        replayed: Mapping[str, Tensor],
        losses: "Losses",
        norm: Tensor,
        agent: nn.Module,
        experience: "Experience",
        epoch: int,
    ) -> bool:
        """Whether loss and gradient are finite: one transfer from the device. False: leave this minibatch out."""
        if math.isfinite((losses.total + norm).item()):
            self._skipped_in_a_row = 0
            return True
        found = first_bad_number(minibatch, replayed, losses, agent, experience)
        message = f"epoch {epoch}: {found.field} is {found.value:g}: {found.where}{self._save(minibatch, found, epoch)}"
        self._skipped_in_a_row += 1
        if self.on_nan == "stop":
            raise TrainingStoppedError(
                f"{message} This epoch was not saved; trainer.on_nan=skip leaves such minibatches out."
            )
        if self._skipped_in_a_row > MAX_SKIPPED_IN_A_ROW:
            raise TrainingStoppedError(f"{message} This was after {MAX_SKIPPED_IN_A_ROW} skipped minibatches in a row.")
        self.skipped += 1
        log.warning("%s Skipped (%s so far).", message, self.skipped)
        return False

    def _save(self, minibatch: "Minibatch", found: BadNumber, epoch: int) -> str:
        """Saves the minibatch for study, the last one only; returns a sentence about it."""
        if self.directory is None:
            return ""
        tensors = {"segments": minibatch.segments, "advantages": minibatch.advantages, "weights": minibatch.weights}
        tensors |= {f"data.{name}": field for name, field in _tensors(minibatch.data).items()}
        tensors |= {f"memory.{name}": field for name, field in _tensors(minibatch.memory).items()}
        facts = {"epoch": epoch, "field": found.field, "value": str(found.value), "where": found.where}
        path = self.directory / "bad_minibatch.safetensors"
        with suppress(OSError):
            path.write_bytes(save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}))
            path.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
            return f" The minibatch is in {path}."
        return ""


@torch.no_grad()
def first_bad_number(
    minibatch: "Minibatch", replayed: Mapping[str, Tensor], losses: "Losses", agent: nn.Module, experience: "Experience"
) -> BadNumber:
    """Looks in the order in which numbers flow: environment, acting, advantages, replay, loss, gradient."""
    segments = minibatch.segments
    rewards = {"rewards": _tensors(experience.buffer)["rewards"][segments]}
    stored = {name: field for name, field in _tensors(minibatch.data).items() if field.is_floating_point()}
    acted = ("act_log_prob", "values", "full_log_probs")
    stages: list[tuple[str, Mapping[str, Tensor]]] = [
        ("from the environment", {"env_obs": stored["env_obs"], **rewards} if "env_obs" in stored else rewards),
        ("the policy's output when it acted", {name: stored[name] for name in acted if name in stored}),
        ("computed from rewards and values", {"returns": stored["returns"], "advantages": minibatch.advantages}),
        ("the policy's output in learning", replayed),
    ]
    weights = {f"the weight {name}": parameter for name, parameter in agent.named_parameters()}
    for name, value, _ in _bad_numbers(weights):
        return BadNumber(name, value, "the weights were bad before this minibatch: lower the learning rate.")
    for stage, fields in stages:
        for name, value, (row, step, *_) in _bad_numbers(fields):
            segment = int(segments[row])
            place = f"row {segment % experience.rows}, step {segment // experience.rows * experience.horizon + step}"
            return BadNumber(name, value, f"{stage}, {place} of the rollout.")
    for name, value in losses._asdict().items():
        if value is not None and not torch.isfinite(value):
            return BadNumber(f"the loss ({name})", value.item(), "all numbers that it is computed from are finite.")
    gradients = {f"the gradient of {name}": p.grad for name, p in agent.named_parameters() if p.grad is not None}
    name, value, _ = next(_bad_numbers(gradients), ("the gradient's norm", math.inf, ()))
    return BadNumber(name, value, "the loss and all weights are finite, so the backward pass overflowed.")


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


def _tensors(td: TensorDictBase) -> dict[str, Tensor]:
    return {name: field for name, field in td.items() if isinstance(field, Tensor)}


def _bad_numbers(fields: Mapping[str, Tensor]) -> Iterator[tuple[str, float, tuple[int, ...]]]:
    """The first bad number of each field, with its index."""
    for name, field in fields.items():
        bad = ~torch.isfinite(field)
        if bad.any():
            index = tuple(bad.nonzero()[0].tolist())
            yield name, field[index].item(), index
