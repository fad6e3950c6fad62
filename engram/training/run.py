"""A run from settings: builds everything, resumes from the last checkpoint if there is one, and trains."""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from engram.agent.metta_agent import MettaAgent
from engram.agent.settings import PyAgent, YamlAgent
from engram.cores import available_cores
from engram.diagnosis import Diagnosis, Setup
from engram.diagnosis.diagnose import LiveDiagnosis
from engram.env.errors import EnvError
from engram.env.registry import make_spec
from engram.env.settings import EnvSettings
from engram.env.spec import EnvSpec
from engram.env.workers.restarts import Restarts
from engram.settings import UserError
from engram.stored.files import UnreadableError
from engram.stored.metrics import Columns, read_columns
from engram.stored.plan import PLAN_FILE, StoredPlan, stored_plan, write_plan
from engram.training.checkpoint.checkpoints import Checkpoints
from engram.training.checkpoint.files import Checkpoint
from engram.training.checkpoint.loading import latest_checkpoint
from engram.training.checkpoint.resume import resume, split_by_rank
from engram.training.device import choose_device, keep_freed_memory, require_precision
from engram.training.distributed import ALONE, PeerEnvError, World
from engram.training.environment import (
    EnvironmentOpener,
    apply_hook,
    check_before_run,
    current_environment,
    evaluate_run,
    save_finished_epochs,
)
from engram.training.exploration import with_exploration
from engram.training.loop import train
from engram.training.metrics import Record
from engram.training.settings import Trainer, Wandb
from engram.training.sinks import make_sinks
from engram.training.sizes import Sizes, of_all_ranks, sizes_of_run, steps_played
from engram.training.state import HookResult, Training, make_agent, new_training, synchronise_weights
from engram.training.stop_signals import overdue, stop_message
from engram.training.storage import Storage, log_to
from engram.training.trace import Trace
from engram.training.watchdog import NumberGuard

log = logging.getLogger("engram")


class TrainingSettings(Protocol):
    """The parts of a run's settings that training needs."""

    run: str
    seed: int
    init_from: str | None
    env: EnvSettings
    trainer: Trainer
    wandb: Wandb

    @property
    def device(self) -> str: ...

    @property
    def policy(self) -> PyAgent | YamlAgent: ...

    @property
    def directory(self) -> Path: ...

    def model_dump(self, *, mode: str) -> dict[str, Any]: ...


class Display(Protocol):
    """Shows a run to a person."""

    def start(self, plan: "RunPlan") -> None: ...

    def update(self, record: Record) -> None: ...

    def message(self, text: str) -> None: ...

    def finish(self, result: "RunResult") -> None: ...


@dataclass(frozen=True)
class RunPlan:
    """The run that is about to be trained."""

    run: str
    policy: str
    env: EnvSpec
    sizes: Sizes
    device: str
    parameters: int
    total_timesteps: int
    steps_done: int

    @property
    def steps_at_end(self) -> int:
        """The steps of the run when it ends: the last batch is played to its end."""
        left = max(self.total_timesteps - self.steps_done, 0)
        return self.steps_done + steps_played(left, self.sizes.batch_size)


@dataclass(frozen=True)
class RunResult:
    run: str
    directory: Path
    checkpoint: Path | None
    env: EnvSpec
    steps: int
    seconds: float
    mean_return: float | None  # over the most recent episodes
    diagnosis: Diagnosis | None = None


class _Hooks(NamedTuple):
    """Functions of the caller of `start`."""

    audit: Callable[[MettaAgent], None] | None
    on_epoch: Callable[[Record], HookResult] | None
    interrupted: Callable[[], bool]


def start(
    settings: TrainingSettings,
    display: Display,
    world: World = ALONE,
    audit: Callable[[MettaAgent], None] | None = None,
    trust: bool = False,
    restore_directory: Callable[[], None] | None = None,
    on_epoch: Callable[[Record], HookResult] | None = None,
    end_hung: Callable[[], None] = lambda: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> RunResult:
    """Train a run. Only rank 0 writes to the run's directory. If one rank's `on_epoch` stops, all do.

    `trust`: code that a teacher's run names may run, even if this user did not make that run here.
    `restore_directory` is called before every write, to recreate what was removed from the run's directory.
    `end_hung` ends the program when an environment of this process hangs, after that was logged.
    `interrupted` tells whether a stop signal came: it cuts long evaluations short, and `on_epoch` should stop then.
    """
    on_hang = partial(_log_and_end, end_hung)
    if settings.trainer.audit is not None and audit is None:
        raise UserError("trainer.audit: `start` needs an audit function: audit=engram.audit.stop_on_memory_fault")
    device, directory, spec = _prepare(settings, display, world), settings.directory, make_spec(settings.env)
    if world.main:
        check_before_run(settings.env, on_hang)
    checkpoint = world.scatter(split_by_rank(latest_checkpoint(directory), world.size) if world.main else None)
    sizes = _sizes(settings, checkpoint, spec.agents, device, world)
    agent = make_agent(settings.policy, spec, settings.trainer, checkpoint, settings.init_from).to(device)
    synchronise_weights(agent, settings.seed, world)
    env_settings, env_seed = current_environment(settings.env, settings.seed, checkpoint)
    restarts = Restarts(settings.trainer.worker_restarts, bad_numbers=settings.trainer.on_nan == "skip")
    opener = EnvironmentOpener(sizes, settings.trainer.worker_timeout, world, restarts, on_hang)
    with opener.open(env_settings, env_seed) as env:
        trainer = with_exploration(settings.trainer, spec).model_copy(update={"update_epochs": sizes.update_epochs})
        trace = Trace(directory / "trace.jsonl", trainer.trace if world.main else 0)
        numbers = NumberGuard(directory if world.main else None, trainer.on_nan)
        training = new_training(agent, env, sizes, trainer, device, settings.seed, trace, world, trust, numbers)
        resume(training, directory, checkpoint)
        storage = Storage(directory, trainer.disk_timeout, restore_directory, overdue(interrupted))
        checkpoints = Checkpoints(directory / "checkpoints", trainer.checkpoint.keep, sizes, storage, checkpoint)
        plan = _plan(settings, training, sizes, device)
        log.info("%s on %s, %s parameters, %s, on %s", plan.policy, spec.name, plan.parameters, sizes, plan.device)
        diagnosis = None
        if world.main:
            stored = stored_plan(plan)  # for programs that show the run
            storage.keep(directory / PLAN_FILE, partial(write_plan, directory, stored))
            diagnosis = _diagnosis(stored, trainer, settings)
        display.start(plan)
        hooks = _Hooks(audit, on_epoch, interrupted)
        _train(training, trainer, settings, opener, checkpoints, storage, display, hooks, diagnosis)
    result = _result(settings, spec, training, checkpoints, diagnosis)
    log.info("done: %s steps, mean return %s", result.steps, result.mean_return)
    display.finish(result)
    return result


def _prepare(settings: TrainingSettings, display: Display, world: World) -> torch.device:
    """Opens the log, seeds torch and chooses the device."""
    keep_freed_memory()
    log_to(settings.directory / "log.txt" if world.main else None, display.message)
    device = choose_device(settings.device, world.info)
    require_precision(settings.trainer.precision, device)
    torch.manual_seed(settings.seed)
    return device


def _log_and_end(end: Callable[[], None], message: str) -> None:
    log.error("%s", message)
    end()


def _diagnosis(plan: StoredPlan, trainer: Trainer, settings: TrainingSettings) -> LiveDiagnosis:
    """A diagnosis that begins with the metrics from before a resume."""
    try:
        earlier = read_columns(settings.directory)
    except UnreadableError:
        earlier = Columns()
    return LiveDiagnosis(Setup.of(trainer, settings.env, settings.policy, plan), earlier)


def _train(
    training: Training,
    trainer: Trainer,
    settings: TrainingSettings,
    opener: EnvironmentOpener,
    checkpoints: Checkpoints,
    storage: Storage,
    display: Display,
    hooks: _Hooks,
    diagnosis: LiveDiagnosis | None,
) -> None:
    """Run the loop with its metrics, checkpoints, display, hook and diagnosis."""
    config, steps_done, main = settings.model_dump(mode="json"), training.progress.steps, training.world.main
    sinks = make_sinks(settings.directory, trainer, settings.wandb, steps_done, config) if main else []

    def report(record: Record) -> None:
        for sink in sinks:
            storage.attempt(sink.name, partial(sink.write, record))
        display.update({**record, "checkpoint": checkpoints.epoch})
        if diagnosis is not None:
            for finding in diagnosis.add(record):
                log.warning("%s. Try %s", finding.line, finding.advice)

    def stop_after(record: Record) -> bool:
        return hooks.on_epoch is not None and apply_hook(training, hooks.on_epoch(record), settings.seed, opener)

    save = partial(checkpoints.save, training)
    evaluate_now = partial(evaluate_run, training, trainer, settings.env, opener.on_hang, hooks.interrupted)
    try:
        train(training, trainer, report, save, evaluate_now, hooks.audit, stop_after)
    except KeyboardInterrupt as stop:
        message = stop_message(training.progress.epoch, checkpoints.epoch, trainer.checkpoint.interval)
        raise type(stop)(message) from None
    except EnvError as error:
        raise type(error)(f"{error}\n{save_finished_epochs(training, checkpoints)}") from error
    except PeerEnvError:
        save_finished_epochs(training, checkpoints)
        raise
    finally:
        training.env.close()
        for sink in sinks:
            with suppress(OSError):
                sink.close()


def _result(
    settings: TrainingSettings,
    spec: EnvSpec,
    training: Training,
    checkpoints: Checkpoints,
    diagnosis: LiveDiagnosis | None,
) -> RunResult:
    return RunResult(
        run=settings.run,
        directory=settings.directory,
        checkpoint=checkpoints.last,
        env=spec,
        steps=training.progress.steps,
        seconds=training.progress.seconds,
        mean_return=training.returns.mean_return,
        diagnosis=diagnosis.result() if diagnosis else None,
    )


def _sizes(
    settings: TrainingSettings, checkpoint: Checkpoint | None, agents: int, device: torch.device, world: World
) -> Sizes:
    """The sizes of rank 0 for all ranks, except the number of workers, which depends on each machine."""
    cores = max(1, available_cores() // world.info.local_size)
    own = sizes_of_run(settings.trainer, checkpoint, agents, device.type, cores, world.size)
    sizes = world.broadcast(own)
    return sizes._replace(num_workers=min(own.num_workers, sizes.num_envs))


def _plan(settings: TrainingSettings, training: Training, sizes: Sizes, device: torch.device) -> RunPlan:
    ranks = training.world.size
    return RunPlan(
        run=settings.run,
        policy=settings.policy.name.rpartition(":")[2],
        env=training.agent.env_spec,
        sizes=of_all_ranks(sizes, ranks),
        device=device.type if ranks == 1 else f"{ranks} x {device.type}",
        parameters=sum(p.numel() for p in training.agent.parameters()),
        total_timesteps=settings.trainer.total_timesteps,
        steps_done=training.progress.steps,
    )
