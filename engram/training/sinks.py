"""Sinks: TensorBoard, Weights & Biases and the profiler, which receive the record of every epoch."""

from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol
from uuid import uuid4

from engram.settings import UserError
from engram.training.metrics import Record
from engram.training.profile import Profile
from engram.training.settings import Trainer, Wandb


class Sink(Protocol):
    def write(self, record: Record) -> None: ...

    def close(self) -> None: ...


def make_sinks(
    directory: Path, trainer: Trainer, wandb: Wandb, steps_done: int, config: Mapping[str, Any]
) -> list[Sink]:
    """The sinks that the settings enable. `config` holds all settings of the run, to show beside its curves."""
    sinks: list[Sink] = []
    if trainer.tensorboard:
        sinks.append(TensorBoard(directory / "tensorboard", steps_done))
    if wandb.enabled:
        sinks.append(WeightsAndBiases(directory, wandb, config))
    if trainer.profile:
        sinks.append(Profile(directory))
    return sinks


class TensorBoard:
    """Writes files for `tensorboard --logdir runs`. On resume, records after the checkpoint are dropped."""

    def __init__(self, directory: Path, steps_done: int) -> None:
        self._module = _import("torch.utils.tensorboard", "tensorboard", "trainer.tensorboard=true")
        self._directory = directory
        self._writer = self._module.SummaryWriter(str(directory), purge_step=steps_done + 1 if steps_done else None)

    def write(self, record: Record) -> None:
        if self._writer is None:  # its thread died of an error
            self._writer = self._module.SummaryWriter(str(self._directory))
        try:
            for name, value in numbers(record).items():
                self._writer.add_scalar(name, value, record["steps"])
            self._writer.flush()
        except OSError:
            with suppress(OSError):
                self._writer.close()
            self._writer = None
            raise

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class WeightsAndBiases:
    """Logs online, or into the run's directory for `wandb sync`. A resumed run continues the same W&B run."""

    def __init__(self, directory: Path, settings: Wandb, config: Mapping[str, Any]) -> None:
        wandb = _import("wandb", "wandb", f"wandb={settings.mode}")
        try:
            self._run = wandb.init(
                project=settings.project,
                entity=settings.entity,
                name=directory.name,
                id=_run_id(directory / "wandb_id.txt"),
                resume="allow",
                mode=settings.mode,
                dir=str(directory),
                config=dict(config),
            )
        except wandb.Error as error:
            raise UserError(
                f"wandb={settings.mode}: {error}: log in with `wandb login`, or give wandb=offline or wandb=off"
            ) from error
        # W&B's own step counter would reject the steps that a resumed run repeats.
        self._run.define_metric("*", step_metric="steps")

    def write(self, record: Record) -> None:
        self._run.log(numbers(record))

    def close(self) -> None:
        self._run.finish()


def numbers(record: Record) -> dict[str, float]:
    """The numeric values of a record."""
    return {name: value for name, value in record.items() if isinstance(value, int | float)}


def _import(module: str, extra: str, setting: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError:
        install = f"pip install -e '.[{extra}]' in the project's folder"
        raise UserError(f"{setting} needs {extra}, which is not installed: {install}") from None


def _run_id(path: Path) -> str:
    if not path.exists():
        path.write_text(uuid4().hex[:12], encoding="utf-8")
    return path.read_text(encoding="utf-8")
