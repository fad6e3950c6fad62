"""The training loop: collect experience, compute advantages, update, report, save."""

import time
from collections.abc import Callable
from functools import partial

from engram.agent.metta_agent import MettaAgent
from engram.training.advantage import Advantages, compute_advantages
from engram.training.experience import Experience, learnable
from engram.training.gradient import compute_gradient, replay_error
from engram.training.metrics import Averages, Record, Timers
from engram.training.normalization import (
    begin_value_normalization,
    is_first_update,
    return_scale,
    update_normalizers,
)
from engram.training.optimizer import OptimizerStep, set_options
from engram.training.settings import Trainer
from engram.training.state import Training, epoch_record
from engram.training.watchdog import check_health

NORM_OBS_UNTIL = 0.5  # of a run: later, the learning rate is too small to follow changing inputs
RETRY_SECONDS = 1.0  # between two attempts to save the last epoch


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
        fraction = progress.fraction(training.rollout.batch_size, settings.total_timesteps)
        scheduled = training.schedules.apply(settings, fraction)
        experience = world.fail_together(partial(training.rollout.collect, timers, scheduled.teaching))
        with timers("learning"):
            advantages = learn(training, experience, scheduled, averages)

        progress.advance(training.rollout.batch_size)
        evaluating, evaluated = is_due(settings.evaluate_interval, progress.epoch), Record()
        if evaluating:
            with timers("evaluation"):
                evaluated = world.fail_together(evaluate)
        record = epoch_record(training, experience, advantages, scheduled, averages, timers) | evaluated
        record = world.broadcast(record)  # every rank decides by the same figures
        report(record)
        check_health(record, agent, settings)
        training.explosion.check(record, agent, settings)
        if audit is not None and is_due(settings.audit, progress.epoch):
            with timers("audit"):
                audit(agent)
        training.schedules.observe(record, settings)
        stop = stop_after(record)
        if retry_save or stop or evaluating or is_due(settings.checkpoint.interval, progress.epoch):
            retry_save = not save(record)
        if stop:
            break
    while not save(record):
        time.sleep(RETRY_SECONDS)


def is_due(interval: int | None, epoch: int) -> bool:
    return interval is not None and epoch % interval == 0


def learn(training: Training, experience: Experience, settings: Trainer, averages: Averages) -> Advantages:
    """Update the policy from one rollout, then the normalisers."""
    agent, world = training.agent, training.world
    if not world.sum(learnable(experience.buffer).sum()).item():  # every environment failed at the end
        return compute_advantages(experience, settings.ppo, world=world)
    norm_returns, first = settings.ppo.norm_returns, is_first_update(agent)
    if norm_returns and first:
        begin_value_normalization(agent, experience, settings.ppo, world)
    advantages = update(training, experience, settings, averages)
    norm_obs = settings.norm_obs and training.progress.steps < NORM_OBS_UNTIL * settings.total_timesteps
    update_normalizers(agent, experience, advantages, norm_obs, norm_returns and not first, world)
    return advantages


def update(training: Training, experience: Experience, settings: Trainer, averages: Averages) -> Advantages:
    """Several passes over a rollout in minibatches. Each computes advantages with the current policy's ratios."""
    agent, world, prioritized = training.agent, training.world, settings.prioritized
    beta = training.progress.anneal(prioritized.prio_beta0, 1.0, settings.total_timesteps)
    scale = return_scale(agent, settings.ppo.norm_returns)
    set_options(training.optimizer, settings.optimizer)
    step, epoch = OptimizerStep(agent, training.optimizer), training.progress.epoch + 1
    for update_epoch in range(settings.update_epochs or 1):
        advantages = compute_advantages(experience, settings.ppo, scale, world)
        minibatches = experience.minibatches(advantages, training.generator, prioritized.prio_alpha, beta)
        for number, minibatch in enumerate(minibatches):
            replayed, losses = compute_gradient(agent, minibatch, settings, training.trace, world)
            norms = step.norms()
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
