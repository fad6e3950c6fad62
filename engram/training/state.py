"""The state of training: everything that changes, what hooks may ask for, and the metrics of an epoch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import torch

from engram.agent.metta_agent import MettaAgent
from engram.env.settings import EnvSettings
from engram.env.vector import VectorEnv
from engram.training.advantage import Advantages
from engram.training.distributed import ALONE, World
from engram.training.experience import Experience
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
from engram.training.numbers import NumberGuard
from engram.training.rollout import Rollout
from engram.training.schedule import Schedules
from engram.training.settings import Trainer
from engram.training.trace import Trace
from engram.training.watchdog import ExplosionGuard


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
    world: World = ALONE
    numbers: NumberGuard = field(default_factory=NumberGuard)


class HookResult(NamedTuple):
    """What a hook asks for after an epoch."""

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
