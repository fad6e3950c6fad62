"""Bad numbers: a loss or gradient that is NaN or infinite is traced to where it entered, and its minibatch is saved."""

import json
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from safetensors.torch import save
from tensordict import TensorDictBase
from torch import Tensor, nn

from engram.training.experience import Experience, Minibatch
from engram.training.ppo import Losses
from engram.training.watchdog import TrainingStoppedError

MAX_IN_A_ROW = 10  # skipped minibatches

log = logging.getLogger("engram")


class BadNumber(NamedTuple):
    """The first bad number of a minibatch."""

    field: str
    value: float
    where: str  # what the field is, and the row and step if it has them


class NumberGuard:
    """Checks every minibatch once, before the optimiser step. Stops the run, or skips the minibatch."""

    def __init__(self, directory: Path | None = None, on_nan: Literal["stop", "skip"] = "stop") -> None:
        self.directory, self.on_nan = directory, on_nan
        self.skipped = 0
        self._skipped_in_a_row = 0

    def accepts(
        self,
        minibatch: Minibatch,
        replayed: Mapping[str, Tensor],
        losses: Losses,
        norm: Tensor,
        agent: nn.Module,
        experience: Experience,
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
        if self._skipped_in_a_row > MAX_IN_A_ROW:
            raise TrainingStoppedError(f"{message} This was after {MAX_IN_A_ROW} skipped minibatches in a row.")
        self.skipped += 1
        log.warning("%s Skipped (%s so far).", message, self.skipped)
        return False

    def _save(self, minibatch: Minibatch, found: BadNumber, epoch: int) -> str:
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
    minibatch: Minibatch, replayed: Mapping[str, Tensor], losses: Losses, agent: nn.Module, experience: Experience
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
    if (bad := next(_bad_numbers(weights), None)) is not None:
        return BadNumber(bad[0], bad[1], "the weights were bad before this minibatch: lower the learning rate.")
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


def _tensors(td: TensorDictBase) -> dict[str, Tensor]:
    return {name: field for name, field in td.items() if isinstance(field, Tensor)}


def _bad_numbers(fields: Mapping[str, Tensor]) -> Iterator[tuple[str, float, tuple[int, ...]]]:
    """The first bad number of each field, with its index."""
    for name, field in fields.items():
        bad = ~torch.isfinite(field)
        if bad.any():
            index = tuple(bad.nonzero()[0].tolist())
            yield name, field[index].item(), index
