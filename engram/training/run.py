"""A run from settings: build everything, go on from the last checkpoint if there is one, and train."""

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from gymnasium import spaces

from engram.agent.metta_agent import MettaAgent
from engram.agent.settings import Agent, PyAgent
from engram.cores import available_cores
from engram.env.registry import make_spec
from engram.env.settings import EnvSettings
from engram.env.spec import EnvSpec
from engram.env.vector import VectorEnv
from engram.settings import UserError
from engram.training.checkpoint.files import Checkpoint
from engram.training.checkpoint.origin import begin_from, latest_checkpoint, load_agent
from engram.training.checkpoint.ranks import cut
from engram.training.checkpoint.resume import EXACT, restore, sizes_of_run
from engram.training.checkpoint.retention import Archive
from engram.training.device import choose_device
from engram.training.distributed import ALONE, World
from engram.training.evaluate import evaluate
from engram.training.experience import Experience
from engram.training.heap import keep_freed_memory
from engram.training.kickstart import annealing, load_teacher
from engram.training.loop import Training, train
from engram.training.metrics import EpisodeLog, MetricsFile, Record
from engram.training.optimizer import make_optimizer
from engram.training.progress import Progress
from engram.training.rollout import Rollout
from engram.training.schedule import Schedules
from engram.training.seeding import number, stream
from engram.training.settings import Trainer, Wandb
from engram.training.sinks import Sink, make_sinks
from engram.training.sizes import Sizes, of_all_processes
from engram.training.threads import Threads, number_of_batches
from engram.training.trace import Trace
from engram.training.watchdog import ExplosionGuard

log = logging.getLogger("engram")


class RunSettings(Protocol):
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
    def policy(self) -> PyAgent | Agent: ...

    @property
    def directory(self) -> Path: ...

    def model_dump(self, *, mode: str) -> dict[str, Any]: ...


class Display(Protocol):
    """Where a person watches."""

    def start(self, plan: "Plan") -> None: ...

    def update(self, record: Record) -> None: ...

    def message(self, text: str) -> None: ...

    def finish(self, result: "Result") -> None: ...


@dataclass(frozen=True)
class Plan:
    """What is about to be trained."""

    run: str
    policy: str
    env: EnvSpec
    sizes: Sizes
    device: str
    parameters: int
    total_timesteps: int
    steps_done: int


@dataclass(frozen=True)
class Result:
    """What came of it."""

    run: str
    directory: Path
    checkpoint: Path | None
    env: EnvSpec
    steps: int
    seconds: float
    mean_return: float | None  # over the most recent episodes


def start(
    settings: RunSettings,
    display: Display,
    world: World = ALONE,
    audit: Callable[[MettaAgent], None] | None = None,
) -> Result:
    """Train as the settings say, in the run's directory; of several processes only the first touches it."""
    if settings.trainer.audit is not None and audit is None:
        raise UserError("trainer.audit: give `start` something to audit with: audit=engram.audit.stop_on_memory_fault")
    keep_freed_memory()
    directory = settings.directory
    _log_to(directory / "log.txt" if world.main else None, display)
    device = choose_device(settings.device, world.place)
    torch.manual_seed(settings.seed)
    spec = make_spec(settings.env)
    checkpoint = world.deal(cut(latest_checkpoint(directory), world.size) if world.main else None)
    sizes = _sizes(settings, checkpoint, spec.agents, device, world)
    agent = _agent(settings, spec, checkpoint).to(device)
    world.give_weights(agent)
    if not world.main:
        torch.manual_seed(number(settings.seed, "policy", world.rank))  # for policies that draw by themselves
    with _environments(settings, sizes, world) as env:
        trainer = settings.trainer.model_copy(update={"update_epochs": sizes.update_epochs})
        trace = Trace(directory / "trace.jsonl", trainer.trace if world.main else 0)
        training = build(agent, env, sizes, trainer, device, settings.seed, trace, world)
        _resume(training, directory, checkpoint)
        archive = Archive(directory / "checkpoints", trainer.checkpoint.keep, sizes, checkpoint)
        plan = _plan(settings, training, sizes, device)
        log.info("%s on %s, %s parameters, %s, on %s", plan.policy, spec.name, plan.parameters, sizes, plan.device)
        display.start(plan)
        _train(training, trainer, settings, archive, display, audit)
    progress, mean_return = training.progress, training.episodes.mean_return
    result = Result(settings.run, directory, archive.last, spec, progress.steps, progress.seconds, mean_return)
    log.info("done: %s steps, mean return %s", result.steps, result.mean_return)
    display.finish(result)
    return result


def _train(
    training: Training,
    trainer: Trainer,
    settings: RunSettings,
    archive: Archive,
    display: Display,
    audit: Callable[[MettaAgent], None] | None,
) -> None:
    """The loop, with all that listens to it."""
    world = training.world
    sinks = _sinks(settings, training) if world.main else []

    def report(record: Record) -> None:
        for sink in sinks:
            sink.write(record)
        display.update(record)

    def save(record: Record) -> None:
        archive.save(training, record)

    def evaluate_now() -> Record:
        if not world.main:
            return {}
        return evaluate(training.agent, settings.env, trainer.evaluate_episodes, memory=trainer.memory).record()

    try:
        train(training, trainer, report, save, evaluate_now, audit)
    except KeyboardInterrupt as stop:
        raise type(stop)(_stopped(training.progress.epoch, archive.epoch, trainer.checkpoint.interval)) from None
    finally:
        for sink in sinks:
            sink.close()


def _stopped(epoch: int, saved: int, interval: int) -> str:
    """What is left of a run that was stopped after this epoch."""
    if not saved:
        every = f"trainer.checkpoint.interval is {_epochs(interval)}"
        return f"stopped before the first checkpoint ({every}): the same command begins anew"
    lost = epoch - saved
    which = f"{_epochs(lost)} since the last checkpoint {'is' if lost == 1 else 'are'} lost"
    loss = f"{which} (trainer.checkpoint.interval): " if lost else ""
    return f"stopped; {loss}run again with the same command to go on from epoch {saved}"


def _epochs(number: int) -> str:
    return f"{number} epoch{'s' * (number != 1)}"


def build(
    agent: MettaAgent,
    env: VectorEnv,
    sizes: Sizes,
    settings: Trainer,
    device: torch.device,
    seed: int,
    trace: Trace,
    world: World = ALONE,
) -> Training:
    """All the parts of training, empty and ready."""
    agent.reserve_memory(sizes.rows)
    agent.set_burn_in(settings.burn_in)
    spec = agent.get_agent_experience_spec()
    action_space = agent.env_spec.single_action_space
    continuous = isinstance(action_space, spaces.Box)
    spec["actions"] = torch.zeros(action_space.shape, dtype=torch.float32 if continuous else torch.long)
    teacher = None
    if settings.kickstart is not None:
        teacher = load_teacher(settings.kickstart, agent.env_spec, sizes.rows, device)
        spec.update(teacher.fields)
    experience = Experience(
        total_agents=sizes.rows,
        batch_size=sizes.batch_size,
        bptt_horizon=sizes.horizon,
        minibatch_size=sizes.minibatch_size,
        experience_spec=spec,
        memory_shapes=agent.memory_shapes(),
        device=device,
        burn_in=settings.burn_in,
    )
    actions, threads = stream(device, seed, "actions"), Threads(sizes.num_workers, sizes.rows, len(env.batches))
    return Training(
        agent=agent,
        env=env,
        experience=experience,
        rollout=Rollout(agent, env, experience, settings, actions, threads, trace, teacher, world),
        optimizer=make_optimizer(agent, settings.optimizer),
        generator=stream(device, seed, "segments", world.rank),
        episodes=EpisodeLog(),
        progress=Progress(),
        schedules=Schedules({**settings.schedule, **annealing(settings)}),
        explosion=ExplosionGuard(),
        trace=trace,
        world=world,
    )


def _sizes(
    settings: RunSettings, checkpoint: Checkpoint | None, agents: int, device: torch.device, world: World
) -> Sizes:
    """Those of the first process for all, but for how many workers this machine can do with."""
    cores = max(1, available_cores() // world.place.local_size)
    here = sizes_of_run(settings.trainer, checkpoint, agents, device.type, cores, world.size)
    sizes = world.share(here)
    return sizes._replace(num_workers=min(here.num_workers, sizes.num_envs))


def _environments(settings: RunSettings, sizes: Sizes, world: World) -> VectorEnv:
    return VectorEnv(
        settings.env,
        num_envs=sizes.num_envs,
        num_workers=sizes.num_workers,
        seed=settings.seed,
        num_batches=number_of_batches(sizes.num_workers, sizes.rows),
        step_timeout=settings.trainer.worker_timeout,
        first_env=world.rank * sizes.num_envs,
    )


def _plan(settings: RunSettings, training: Training, sizes: Sizes, device: torch.device) -> Plan:
    processes = training.world.size
    return Plan(
        run=settings.run,
        policy=settings.policy.name,
        env=training.agent.env_spec,
        sizes=of_all_processes(sizes, processes),
        device=device.type if processes == 1 else f"{processes} x {device.type}",
        parameters=sum(p.numel() for p in training.agent.parameters()),
        total_timesteps=settings.trainer.total_timesteps,
        steps_done=training.progress.steps,
    )


def _sinks(settings: RunSettings, training: Training) -> list[Sink]:
    directory, config = settings.directory, settings.model_dump(mode="json")
    others = make_sinks(directory, settings.trainer, settings.wandb, training.progress.steps, config)
    return [MetricsFile(directory / "metrics.jsonl"), *others]


def _agent(settings: RunSettings, spec: EnvSpec, checkpoint: Checkpoint | None) -> MettaAgent:
    """The run's own, or one that begins: anew, or with the weights of another run."""
    if checkpoint is not None:
        return load_agent(checkpoint, settings.policy, spec, training=True)
    if settings.init_from is not None:
        return begin_from(Path(settings.init_from), settings.policy, spec)
    return MettaAgent(spec, settings.policy)


def _resume(training: Training, directory: Path, checkpoint: Checkpoint | None) -> None:
    """Go on from a checkpoint, or begin."""
    world = training.world
    if world.main:
        MetricsFile.truncate(directory / "metrics.jsonl", checkpoint.state["progress"]["epoch"] if checkpoint else 0)
    if checkpoint is None:
        training.env.reset()
        return
    for said in dict.fromkeys(world.gather(restore(training, checkpoint))):
        log.log(logging.INFO if said == EXACT else logging.WARNING, "%s, from %s", said, checkpoint.path)


def _log_to(path: Path | None, display: Display) -> None:
    """The log file gets everything; warnings are also shown. Without one nothing is: another process says the same."""
    for handler in list(log.handlers):
        log.removeHandler(handler)
        handler.close()
    if path is None:
        log.addHandler(logging.NullHandler())
    else:
        to_file = logging.FileHandler(path, encoding="utf-8")
        to_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(to_file)
        log.addHandler(_ShowWarnings(display))
    log.setLevel(logging.INFO)
    log.propagate = False
    warnings.showwarning = lambda message, *_args, **_kwargs: log.warning("%s", message)


class _ShowWarnings(logging.Handler):
    def __init__(self, display: Display) -> None:
        super().__init__(logging.WARNING)
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        self._display.message(record.getMessage())
