"""The whole of training: live, judge, learn, report, save; again."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from engram.agent.metta_agent import MettaAgent
from engram.env.vector import VectorEnv
from engram.training.distributed import ALONE, World
from engram.training.experience import Experience, Minibatch
from engram.training.gradient import compute_gradient
from engram.training.metrics import (
    Averages,
    EpisodeLog,
    Record,
    Timers,
    explained_variance,
    in_turn,
    process_megabytes,
    weight_record,
)
from engram.training.optimizer import Optimise, set_options
from engram.training.ppo import normalise, typical_size
from engram.training.progress import Progress
from engram.training.replay import replay_error
from engram.training.rollout import Rollout
from engram.training.schedule import Schedules
from engram.training.settings import Trainer
from engram.training.trace import Trace
from engram.training.watchdog import ExplosionGuard, check_health


@dataclass
class Training:
    """Everything that changes while training, and so everything a checkpoint holds; and who trains."""

    agent: MettaAgent
    env: VectorEnv
    experience: Experience
    rollout: Rollout
    optimizer: torch.optim.Optimizer
    generator: torch.Generator
    episodes: EpisodeLog
    progress: Progress
    schedules: Schedules
    explosion: ExplosionGuard
    trace: Trace
    world: World = ALONE


def train(
    training: Training,
    settings: Trainer,
    report: Callable[[Record], None],
    save: Callable[[Record], None],
    evaluate: Callable[[], Record],
    audit: Callable[[MettaAgent], None] | None = None,
) -> None:
    """Train until the steps are done. `report` is called once an epoch, `save` at checkpoints and at the end."""
    agent, experience, progress, world = training.agent, training.experience, training.progress, training.world
    optimise = Optimise(agent, training.optimizer)
    timers, averages, record = Timers(), Averages(), Record()
    batch_size = experience.batch_size * world.size
    while progress.steps < settings.total_timesteps:
        now = training.schedules.now(settings, progress.share(batch_size, settings.total_timesteps))
        set_options(training.optimizer, now.optimizer)
        training.rollout.collect(timers, now.teaching)

        with timers("learning"):
            for number, minibatch in enumerate(minibatches(training, now)):
                replayed, losses = compute_gradient(agent, minibatch, now, training.trace, world)
                if number == 0:
                    averages.add("memory", replay_error(replayed, minibatch, world))
                norms = optimise(now.optimizer)
                experience.update_ratio(minibatch, replayed["act_log_prob"])
                averages.add("loss", losses)
                averages.add("gradient", norms)
                if now.ppo.target_kl is not None and float(losses.kl) > now.ppo.target_kl:
                    break

        progress.advance(batch_size)
        episodes = in_turn(world.gather(training.env.drain_episodes()))
        record = progress.record() | training.episodes.add(episodes) | averages.take()
        values, returns = experience.buffer["values"], experience.buffer["returns"]
        record["value/explained_variance"] = explained_variance(values, returns, world)
        record["memory/norm"] = world.sum(agent.memory_norm().square() / world.size).sqrt().item()
        record |= training.schedules.record(now) | weight_record(agent, progress.epoch)
        evaluating = settings.evaluate_interval is not None and progress.epoch % settings.evaluate_interval == 0
        if evaluating:
            with timers("evaluation"):
                record |= evaluate()
        record |= progress.timing(timers.take(), batch_size)
        record["process/megabytes"] = process_megabytes()
        record = world.share(record)  # all decide by the same figures
        report(record)
        check_health(record, agent, settings)
        training.explosion.check(record, agent, settings)
        if audit is not None and settings.audit is not None and progress.epoch % settings.audit == 0:
            with timers("audit"):
                audit(agent)
        training.schedules.observe(record, settings)
        if evaluating or progress.epoch % settings.checkpoint.interval == 0:
            save(record)
    save(record)


def minibatches(training: Training, settings: Trainer) -> Iterator[Minibatch]:
    """All of an epoch's minibatches: each pass over the experience judges it anew, by what the policy has become."""
    experience, prioritized = training.experience, settings.prioritized
    beta = training.progress.anneal(prioritized.prio_beta0, 1.0, settings.total_timesteps)
    for _ in range(settings.update_epochs or 1):
        advantages, returns = experience.advantages(settings.ppo)
        alive = experience.buffer["alive"]
        size = typical_size(returns, alive, training.world)
        if settings.ppo.norm_adv:
            advantages = normalise(advantages, alive, training.world, least=settings.ppo.adv_floor * size)
        value_unit = size if settings.ppo.norm_returns else 1.0
        for minibatch in experience.minibatches(advantages, training.generator, prioritized.prio_alpha, beta):
            yield minibatch._replace(value_unit=value_unit)
