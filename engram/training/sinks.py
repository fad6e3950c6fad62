"""Sinks, which receive the record of every epoch: metrics.jsonl, TensorBoard, Weights & Biases and the profiler."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol
from uuid import uuid4

import torch
from torch.profiler import ProfilerActivity

from engram.settings import UserError
from engram.training.metrics import MetricsFile, Record
from engram.training.settings import Trainer, Wandb

PROFILE_ROWS = 40

log = logging.getLogger("engram")


class Sink(Protocol):
    name: str  # what it writes, for messages

    def write(self, record: Record) -> None: ...

    def close(self) -> None: ...


def make_sinks(
    directory: Path, trainer: Trainer, wandb: Wandb, steps_done: int, config: Mapping[str, Any]
) -> list[Sink]:
    """metrics.jsonl, and the sinks that the settings enable. `config`: the run's settings, shown beside its curves."""
    sinks: list[Sink] = []
    if trainer.tensorboard:
        sinks.append(TensorBoard(directory / "tensorboard", steps_done))
    if wandb.enabled:
        sinks.append(WeightsAndBiases(directory, wandb, config))
    if trainer.profile:
        sinks.append(Profile(directory))
    return [MetricsFile(directory / "metrics.jsonl"), *sinks]


class TensorBoard:
    """Writes files for `tensorboard --logdir runs`. On resume, records after the checkpoint are dropped."""

    name = "the log for TensorBoard"

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

    name = "the log for W&B"

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


class Profile:
    """Profiles with torch: a table, and a trace for chrome://tracing or Perfetto.

    Profiles the second epoch after a start or resume; one-time work slows down the first.
    """

    name = "the profile"

    def __init__(self, directory: Path) -> None:
        self.table, self.trace = directory / "profile.txt", directory / "profile.json"
        self._record: Record = {}
        self._epochs = 0
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        second = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
        self._profiler = torch.profiler.profile(activities=activities, schedule=second, on_trace_ready=self._write)
        self._profiler.start()

    def write(self, record: Record) -> None:
        """Called at the end of every epoch."""
        self._record, self._epochs = record, self._epochs + 1
        self._profiler.step()

    def close(self) -> None:
        self._profiler.stop()
        if self._epochs < 2:
            log.warning("trainer.profile: nothing was written, because less than two epochs were left to train")

    def _write(self, profiler: torch.profiler.profile) -> None:
        if self._epochs < 2:  # stopped before the profiled epoch ended
            return
        try:
            self._write_files(profiler)
        except (OSError, RuntimeError) as error:  # torch's own writer raises RuntimeError
            log.warning("trainer.profile: %s cannot be written: %s", self.trace, error)

    def _write_files(self, profiler: torch.profiler.profile) -> None:
        profiler.export_chrome_trace(str(self.trace))
        phases = [f"{name:<32} {value:10.3f}" for name, value in self._record.items() if name.startswith("time/")]
        operators = profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=PROFILE_ROWS)
        head = f"Epoch {self._record['epoch']}, slowed down by the profiler"
        self.table.write_text("\n".join([head, *phases, "", operators]), encoding="utf-8")
        log.info("wrote %s and %s", self.table, self.trace)


def numbers(record: Record) -> dict[str, float]:
    """The numeric values of a record."""
    return {name: value for name, value in record.items() if isinstance(value, int | float)}


def _import(module: str, extra: str, setting: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError:
        install = f"pip install 'engram-rl[{extra}]'"
        raise UserError(f"{setting} needs {extra}, which is not installed: {install}") from None


def _run_id(path: Path) -> str:
    if not path.exists():
        path.write_text(uuid4().hex[:12], encoding="utf-8")
    return path.read_text(encoding="utf-8")
