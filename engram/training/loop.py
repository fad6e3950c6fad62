"""The training loop: collect experience, compute advantages, update, report, save."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import torch

from engram.agent.metta_agent import MettaAgent
from engram.env.settings import EnvSettings
from engram.env.vector import VectorEnv
from engram.training.advantage import Advantages, compute_advantages
from engram.training.distributed import ALONE, World
from engram.training.experience import Experience, learnable
from engram.training.gradient import compute_gradient
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
from engram.training.normalization import (
    advantage_unit,
    begin_value_normalization,
    is_first_update,
    update_normalizers,
    value_unit,
)
from engram.training.numbers import NumberGuard
from engram.training.optimizer import OptimizerStep, set_options
from engram.training.replay import replay_error
from engram.training.rollout import Rollout
from engram.training.schedule import Schedules
from engram.training.settings import Trainer
from engram.training.trace import Trace
from engram.training.watchdog import ExplosionGuard, check_health

NORM_OBS_UNTIL = 0.5  # of a run: later, the learning rate is too small to follow changing inputs
RETRY_SECONDS = 1.0  # between two attempts to save the last epoch


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


def train(
    training: Training,
    settings: Trainer,
    report: Callable[[Record], None],
    save: Callable[[Record], bool],
    evaluate: Callable[[], Record],
    audit: Callable[[MettaAgent], None] | None = None,
    stop_after: Callable[[Record], bool] = lambda record: False,
) -> None:
    """Train for `settings.total_timesteps`. Calls `report` every epoch, and `save` at checkpoints and at the end.

    If `save` returns False, because the disk is full for example, it is called again after the next epoch.
    `stop_after` may change the environment and scheduled settings after an epoch; if it returns true, training ends.
    """
    agent, progress, world = training.agent, training.progress, training.world
    timers, averages, record, retry_save = Timers(), Averages(), Record(), False
    while progress.steps < settings.total_timesteps:
        now = training.schedules.now(settings, progress.fraction(training.rollout.batch_size, settings.total_timesteps))
        experience = world.together(partial(training.rollout.collect, timers, now.teaching))
        with timers("learning"):
            advantages = learn(training, experience, now, averages)

        progress.advance(training.rollout.batch_size)
        record = epoch_record(training, experience, advantages, averages) | training.schedules.record(now)
        record |= observation_record(agent, experience, settings.norm_obs)
        evaluating = settings.evaluate_interval is not None and progress.epoch % settings.evaluate_interval == 0
        if evaluating:
            with timers("evaluation"):
                record |= world.together(evaluate)
        record |= progress.timing(timers.take(), training.rollout.batch_size)
        record["process/megabytes"] = process_megabytes()
        record["loss/skipped"] = training.numbers.skipped
        record["env/worker_restarts"] = sum(world.gather(training.env.restarts.count))
        record = world.broadcast(record)  # every rank decides by the same figures
        report(record)
        check_health(record, agent, settings)
        training.explosion.check(record, agent, settings)
        if audit is not None and settings.audit is not None and progress.epoch % settings.audit == 0:
            with timers("audit"):
                audit(agent)
        training.schedules.observe(record, settings)
        stop = stop_after(record)
        if retry_save or stop or evaluating or progress.epoch % settings.checkpoint.interval == 0:
            retry_save = not save(record)
        if stop:
            break
    while not save(record):
        time.sleep(RETRY_SECONDS)


def epoch_record(training: Training, experience: Experience, advantages: Advantages, averages: Averages) -> Record:
    """The metrics of an epoch, over all ranks."""
    agent, progress, world = training.agent, training.progress, training.world
    episodes = interleave_ranks(world.gather(training.env.drain_episodes()))
    record = progress.record() | training.returns.add(episodes) | averages.take()
    record["value/explained_variance"] = explained_variance(experience.buffer["values"], advantages.returns, world)
    record["memory/norm"] = world.sum(agent.memory_norm().square() / world.size).sqrt().item()
    return record | weight_record(agent, progress.epoch)


def learn(training: Training, experience: Experience, settings: Trainer, averages: Averages) -> Advantages:
    """Update the policy from one rollout, then the normalisers."""
    agent, world, prioritized = training.agent, training.world, settings.prioritized
    set_options(training.optimizer, settings.optimizer)
    beta = training.progress.anneal(prioritized.prio_beta0, 1.0, settings.total_timesteps)
    if not world.sum(learnable(experience.buffer).sum()).item():  # every environment failed at the end
        return compute_advantages(experience, settings.ppo, world=world)
    norm_returns, first = settings.ppo.norm_returns, is_first_update(agent)
    if norm_returns and first:
        begin_value_normalization(agent, experience, settings.ppo, world)
    advantages = update(training, experience, settings, averages, beta)
    norm_obs = settings.norm_obs and training.progress.steps < NORM_OBS_UNTIL * settings.total_timesteps
    update_normalizers(agent, experience, advantages, norm_obs, norm_returns and not first, world)
    return advantages


def update(
    training: Training, experience: Experience, settings: Trainer, averages: Averages, beta: float
) -> Advantages:
    """Several passes over a rollout in minibatches. Each computes advantages with the current policy's ratios."""
    agent, world = training.agent, training.world
    unit = value_unit(agent, settings.ppo.norm_returns)
    floor_unit = advantage_unit(agent, settings.ppo.norm_returns)
    step = OptimizerStep(agent, training.optimizer)
    for update_epoch in range(settings.update_epochs or 1):
        advantages = compute_advantages(experience, settings.ppo, unit, floor_unit, world)
        minibatches = experience.minibatches(advantages, training.generator, settings.prioritized.prio_alpha, beta)
        for number, minibatch in enumerate(minibatches):
            replayed, losses = compute_gradient(agent, minibatch, settings, training.trace, world)
            norms, epoch = step.norms(), training.progress.epoch + 1
            if not training.numbers.accepts(minibatch, replayed, losses, norms.norm, agent, experience, epoch):
                continue
            if update_epoch == number == 0:
                averages.add("memory", replay_error(replayed, minibatch, world))
            averages.add("loss", losses)
            averages.add("gradient", step(settings.optimizer, norms))
            experience.update_ratio(minibatch, replayed["act_log_prob"])
            if settings.ppo.target_kl is not None and float(losses.kl) > settings.ppo.target_kl:
                return advantages
    return advantages
