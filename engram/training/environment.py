"""The environment of a run: checks and opens it, changes it for a hook, evaluates in it, and saves when it fails."""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from pydantic import ValidationError

from engram.env.check import check_environment
from engram.env.errors import EnvError
from engram.env.registry import make_spec
from engram.env.settings import EnvSettings
from engram.env.spec import EnvSpec
from engram.env.vector import VectorEnv
from engram.env.workers.restarts import Restarts
from engram.settings import UserError
from engram.stored.trust import code_named_in
from engram.training.checkpoint.checkpoints import Checkpoints
from engram.training.checkpoint.files import Checkpoint
from engram.training.device import derive_seed, number_of_batches
from engram.training.distributed import PeerError, World
from engram.training.evaluate import EvaluationStoppedError, evaluate
from engram.training.metrics import Record
from engram.training.settings import Trainer
from engram.training.sizes import Sizes
from engram.training.state import HookResult, Training
from engram.training.stop_signals import overdue

CHECK_STEPS = 50  # of random play before a run

log = logging.getLogger("engram")


def check_before_run(env: EnvSettings, on_hang: Callable[[str], None]) -> None:
    """Play CHECK_STEPS with random actions, unless `env.check` is off, so that mistakes show before the run."""
    if getattr(env, "check", "off") == "off":
        return
    check = check_environment(env, CHECK_STEPS, on_hang)
    if check.errors:
        raise UserError(check.errors[0])
    for warning in check.warnings:
        log.warning("environment: %s", warning)


def current_environment(env: EnvSettings, seed: int, checkpoint: Checkpoint | None) -> tuple[EnvSettings, int]:
    """The environment and its seed: those of the settings, unless a hook had changed them before the checkpoint."""
    stored = None if checkpoint is None else checkpoint.state.get("env")
    if checkpoint is None or stored is None or stored["settings"].get("kind") != env.kind:
        return env, seed
    in_checkpoint, in_settings = (
        set(code_named_in({"env": each})) for each in (stored["settings"], env.model_dump(mode="json"))
    )
    if new := in_checkpoint - in_settings:  # only the settings of a run are checked for code that is not trusted
        raise UserError(f"{checkpoint.path} names code that the settings of its run do not: {', '.join(new)}")
    try:
        return type(env).model_validate(stored["settings"]), stored["seed"]
    except ValidationError as error:
        raise UserError(f"{checkpoint.path}: its environment does not fit this version of Engram: {error}") from None


@dataclass(frozen=True)
class EnvironmentOpener:
    """Opens the environments of a run on this rank: those of its settings, and those that a hook asks for later."""

    sizes: Sizes
    step_timeout: float
    world: World
    restarts: Restarts  # counted over all of them
    on_hang: Callable[[str], None]

    def open(self, env: EnvSettings, seed: int) -> VectorEnv:
        return VectorEnv(
            env,
            num_envs=self.sizes.num_envs,
            num_workers=self.sizes.num_workers,
            seed=seed,
            num_batches=number_of_batches(self.sizes.num_workers, self.sizes.rows),
            step_timeout=self.step_timeout,
            first_env=self.world.rank * self.sizes.num_envs,
            restarts=self.restarts,
            on_hang=self.on_hang,
        )


def apply_hook(training: Training, result: HookResult, seed: int, opener: EnvironmentOpener) -> bool:
    """Do what the hook of rank 0 asks for. Returns whether to stop: if the hook of any rank says so, all stop."""
    world = training.world
    results = world.gather(result)  # a signal may reach any rank, but all stop in the same epoch
    stop = any(each.stop for each in results)
    result = world.broadcast(results[0]._replace(stop=stop) if world.main else HookResult())
    training.schedules.fixed |= result.values
    if (env := result.env) is not None:
        world.fail_together(lambda: change_environment(training, env, seed, opener))
    return result.stop


def change_environment(training: Training, env: EnvSettings, seed: int, opener: EnvironmentOpener) -> None:
    """Start new episodes in all rows, in a different environment with the same spaces."""
    if env == training.env.settings:
        return
    _check_same_spaces(training.agent.env_spec, make_spec(env))
    training.env.close()
    seed = derive_seed(seed, "environment", training.progress.epoch)  # episodes that were not played before
    training.env = opener.open(env, seed)
    training.env.reset()
    training.rollout.change_environment(training.env)
    log.info("epoch %s: the environment is now %r", training.progress.epoch, env)


def evaluate_run(
    training: Training,
    trainer: Trainer,
    env: EnvSettings,
    on_hang: Callable[[str], None],
    interrupted: Callable[[], bool],
) -> Record:
    """Rank 0 plays episodes with sampled and with greedy actions; other ranks play none.

    Returns no metrics if a stop signal ends it early, or if its environments fail, which counts as a restart.
    """
    if not training.world.main:
        return {}
    play = partial(evaluate, training.agent, env, trainer.evaluate_episodes, memory=trainer.memory)
    play = partial(play, step_timeout=trainer.worker_timeout, on_hang=on_hang, stop=overdue(interrupted))
    try:
        return play().record() | play(greedy=True).record("greedy_")
    except EnvError as error:
        training.env.restarts.allow(error)
    except EvaluationStoppedError:
        log.warning("epoch %s: its evaluation was cut short by a stop signal", training.progress.epoch)
    return {}


def save_finished_epochs(training: Training, checkpoints: Checkpoints) -> str:
    """Saves the epochs before the rollout that failed; returns from where the run can resume.

    All ranks call this. The run resumes with new episodes, also on ranks whose environments did not fail.
    """
    training.env.close()
    if training.progress.epoch > checkpoints.epoch:
        with suppress(PeerError):
            checkpoints.save(training, {})
    if not checkpoints.epoch:
        return "There is no checkpoint yet: the same command starts from the beginning."
    return f"The same command resumes from epoch {checkpoints.epoch}."


def _check_same_spaces(before: EnvSpec, after: EnvSpec) -> None:
    expected, got = (
        replace(spec, name="", memoryless_ceiling=None, mean_return_goal=None).to_json() for spec in (before, after)
    )
    if changed := [name for name in expected if expected[name] != got[name]]:
        differences = "; ".join(f"{name} {got[name]}, not {expected[name]}" for name in changed)
        raise UserError(f"env: spaces must stay the same during a run, but the new environment has {differences}")
