"""Evaluation of a run: plays whole episodes with its policy."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from engram.agent.metta_agent import MettaAgent
from engram.agent.transfer import unknown_features
from engram.api.arguments import Env, env_choice
from engram.api.run import Run, directory_of
from engram.config.evaluation import EvalSettings, PlaySettings, RunRequest, load_request
from engram.env.registry import make_spec
from engram.training.checkpoint.files import Checkpoint
from engram.training.checkpoint.loading import checkpoint_of, load_agent
from engram.training.device import choose_device
from engram.training.evaluate import Evaluation
from engram.training.evaluate import evaluate as play_episodes

Play = TypeVar("Play", bound=PlaySettings)


class RunEvaluation(NamedTuple):
    evaluation: Evaluation
    about: dict[str, Any]  # the run, the settings and the results, as plain data


def evaluate(
    run: str | os.PathLike[str] | Run,
    episodes: int = 100,
    *,
    env: Env | None = None,
    greedy: bool = False,
    trust: bool = False,
    **settings: Any,
) -> Evaluation:
    """Play whole episodes with the policy of a run. Settings are those of `engram eval`.

    >>> import engram
    >>> evaluation = engram.evaluate("runs/first", episodes=8, checkpoint="latest")
    >>> evaluation.episodes, 0 <= evaluation.returns.mean <= 1
    (8, True)
    """
    given = {"run": str(directory_of(run)), "episodes": episodes, "greedy": greedy, **settings}
    if env is not None:
        given["env"] = env if isinstance(env, dict) else env_choice(env)
    return play(load_request([], EvalSettings, trust, given)).evaluation


def play(request: RunRequest[EvalSettings]) -> RunEvaluation:
    """Evaluate as requested."""
    _, settings, run = request
    with _plain_warnings():
        agent, checkpoint = load_requested_agent(request)
        evaluation = play_episodes(
            agent,
            run.env,
            settings.episodes,
            greedy=settings.greedy,
            seed=settings.seed,
            num_envs=settings.num_envs,
            num_workers=settings.num_workers,
            memory=run.trainer.memory,
            step_timeout=run.trainer.worker_timeout,
        )
    spec, progress = agent.env_spec, checkpoint.state["progress"]
    about = {
        "run": run.run,
        "policy": run.policy.name,
        "env": spec.name,
        "checkpoint": str(checkpoint.path),
        "epoch": progress["epoch"],
        "steps": progress["steps"],
        "greedy": settings.greedy,
        "seed": settings.seed,
        "memory": run.trainer.memory,
        **evaluation.to_json(),
        "memoryless_ceiling": spec.memoryless_ceiling,
        "mean_return_goal": spec.mean_return_goal,
        "masked_features": [f.name for f in unknown_features(agent.policy.env_spec.features, spec.features)],
    }
    return RunEvaluation(evaluation, about)


def load_requested_agent(request: RunRequest[Play]) -> tuple[MettaAgent, Checkpoint]:
    """The agent of the requested checkpoint, bound to the requested environment, and the checkpoint."""
    directory, settings, run = request
    with _plain_warnings():
        checkpoint = checkpoint_of(directory, settings.checkpoint)
        agent = load_agent(checkpoint, run.policy, make_spec(run.env), training=False)
    return agent.to(choose_device(settings.device)), checkpoint


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print warnings to standard error as their text alone."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_args, **_kwargs: print(message, file=sys.stderr)
        yield
