"""The state of training: everything that changes, how it is built, and the metrics of an epoch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch
from gymnasium import spaces

from engram.agent.metta_agent import MettaAgent
from engram.agent.settings import PyAgent, YamlAgent
from engram.env.settings import EnvSettings
from engram.env.spec import EnvSpec
from engram.env.vector import VectorEnv
from engram.training.advantage import Advantages
from engram.training.checkpoint.files import Checkpoint
from engram.training.checkpoint.loading import begin_from, load_agent
from engram.training.device import Threads, derive_seed, generator
from engram.training.distributed import World
from engram.training.experience import Experience
from engram.training.kickstart import annealing, load_teacher
from engram.training.metrics import (
    Averages,
    Progress,
    Record,
    ReturnTracker,
    Timers,
    explained_variance,
    interleave_ranks,
    observation_record,
    process_megabytes,
    weight_record,
)
from engram.training.optimizer import make_optimizer
from engram.training.rollout import Rollout
from engram.training.schedule import Schedules
from engram.training.settings import Trainer
from engram.training.sizes import Sizes
from engram.training.trace import Trace
from engram.training.watchdog import ExplosionGuard, NumberGuard


@dataclass
class Training:
    """Everything that changes during training, and so everything that a checkpoint saves."""

    agent: MettaAgent
    env: VectorEnv
    rollout: Rollout
    optimizer: torch.optim.Optimizer
    generator: torch.Generator  # shuffles minibatches
    returns: ReturnTracker
    progress: Progress
    schedules: Schedules
    explosion: ExplosionGuard
    trace: Trace
    world: World
    numbers: NumberGuard


def make_agent(
    policy: PyAgent | YamlAgent, spec: EnvSpec, trainer: Trainer, checkpoint: Checkpoint | None, init_from: str | None
) -> MettaAgent:
    """The agent of the run's checkpoint, or one with the weights of `init_from`, or a new one."""
    if checkpoint is not None:
        return load_agent(checkpoint, policy, spec, training=True)
    if init_from is not None:
        return begin_from(Path(init_from), policy, spec)
    agent = MettaAgent(spec, policy)
    if trainer.chrono_init:
        agent.spread_time_scales(trainer.bptt_horizon)
    return agent


def synchronise_weights(agent: MettaAgent, seed: int, world: World) -> None:
    """Give all ranks the weights of rank 0, and each rank its own random numbers."""
    world.broadcast_weights(agent)
    if not world.main:
        torch.manual_seed(derive_seed(seed, "policy", world.rank))  # for policies that draw random numbers


def new_training(
    agent: MettaAgent,
    env: VectorEnv,
    sizes: Sizes,
    trainer: Trainer,
    device: torch.device,
    seed: int,
    trace: Trace,
    world: World,
    trust: bool,
    numbers: NumberGuard,
) -> Training:
    """The training of a new run, in its initial state."""
    agent.reserve_memory(sizes.rows)
    agent.set_burn_in(trainer.burn_in)
    spec = agent.get_agent_experience_spec()
    action_space = agent.env_spec.single_action_space
    continuous = isinstance(action_space, spaces.Box)
    spec["actions"] = torch.zeros(action_space.shape, dtype=torch.float32 if continuous else torch.long)
    teacher = None
    if trainer.kickstart is not None:
        teacher = load_teacher(trainer.kickstart, agent.env_spec, sizes.rows, device, trust)
        spec.update(teacher.fields)
    experience = Experience(
        total_agents=sizes.rows,
        batch_size=sizes.batch_size,
        bptt_horizon=sizes.horizon,
        minibatch_size=sizes.minibatch_size,
        experience_spec=spec,
        memory_shapes=agent.memory_shapes(),
        device=device,
        burn_in=trainer.burn_in,
    )
    actions, threads = generator(device, seed, "actions"), Threads(sizes.num_workers, sizes.rows, len(env.batches))
    return Training(
        agent=agent,
        env=env,
        rollout=Rollout(agent, env, experience, trainer, actions, threads, trace, teacher, world),
        optimizer=make_optimizer(agent, trainer.optimizer),
        generator=generator(device, seed, "segments", world.rank),
        returns=ReturnTracker(),
        progress=Progress(),
        schedules=Schedules({**trainer.schedule, **annealing(trainer)}),
        explosion=ExplosionGuard(),
        trace=trace,
        world=world,
        numbers=numbers,
    )


class HookResult(NamedTuple):
    """The changes that a hook asks for after an epoch."""

    stop: bool = False
    values: Mapping[str, float] = MappingProxyType({})  # of schedulable settings from now on, by name (`ppo.ent_coef`)
    env: EnvSettings | None = None  # the environment from now on


def epoch_record(
    training: Training,
    experience: Experience,
    advantages: Advantages,
    settings: Trainer,
    averages: Averages,
    timers: Timers,
) -> Record:
    """The metrics of an epoch, over all ranks; `settings` are those of this epoch."""
    agent, progress, world = training.agent, training.progress, training.world
    episodes = interleave_ranks(world.gather(training.env.drain_episodes()))
    record = progress.record() | training.returns.add(episodes) | averages.take()
    record["value/explained_variance"] = explained_variance(experience.buffer["values"], advantages.returns, world)
    record["memory/norm"] = world.sum(agent.memory_norm().square() / world.size).sqrt().item()
    record |= weight_record(agent, progress.epoch) | training.schedules.record(settings)
    record |= observation_record(agent, experience, settings.norm_obs)
    record |= progress.timing(timers.take(), training.rollout.batch_size)
    record["process/megabytes"] = process_megabytes()
    record["loss/skipped"] = training.numbers.skipped
    record["env/worker_restarts"] = sum(world.gather(training.env.restarts.count))
    return record
