"""Play whole episodes with a trained policy: `engram eval run=NAME [SETTING=VALUE …] [--json]`."""

import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from typing import Any

from engram.config.evaluation import EvalRequest, load_evaluation
from engram.nearest import nearest
from engram.settings import UserError
from engram.training.settings import EVALUATION_SEED

HELP = f"""Usage: engram eval run=NAME [SETTING=VALUE …] [--json]

Plays whole episodes with the policy of a run, with a memory of its own, and tells return, length and the environment's
statistics, each with the 95% confidence interval of its mean.

Settings, and their defaults:

  run=NAME             the run, or the path of its directory
  runs_dir=runs        where runs are
  checkpoint=latest    or best, or the path of one
  episodes=100         whole episodes, shared out evenly over the environments
  greedy=false         true: always the most likely action; false: drawn, as in training
  seed={EVALUATION_SEED}       of the episodes: by default the same for every run, and none that it was trained on
  num_envs=32          environments side by side
  num_workers=0        processes that step them; 0: none but this one
  device=auto          auto, cpu, cuda or mps
  env.SETTING=VALUE    change the run's environment
  env=CHOICE           another one: features are known by name, those that the policy does not know are masked

  --json               one JSON object on standard output, with return.mean, return.low and return.high

Examples:

  engram eval run=fast_tmaze
  engram eval run=fast_tmaze checkpoint=best greedy=true episodes=500 --json"""

FLAGS = ("--json", "--help")


def main(words: Sequence[str]) -> int:
    if {"--help", "-h"} & {*words}:
        print(HELP)
        return 0
    for word in words:
        if word.startswith("-") and word not in FLAGS and (flag := nearest(word, FLAGS)):
            raise UserError(f"engram eval: no option {word}; did you mean {flag}?")
    request = load_evaluation([word for word in words if word != "--json"])
    if "--json" in words:
        with _nobody_else_prints():
            result = play(request)
        print(json.dumps(result))
        return 0
    import_module("engram.display.evaluation").show(play(request))
    return 0


def play(request: EvalRequest) -> dict[str, Any]:
    """Evaluate as asked; what was found, as plain data."""
    # Loaded here and not above: torch takes seconds, and a mistyped option should be answered at once.
    from engram.agent.feature_map import unknown_features
    from engram.env.registry import make_spec
    from engram.training.checkpoint.origin import checkpoint_of, load_agent
    from engram.training.evaluate import evaluate
    from engram.training.run import choose_device

    directory, how, run = request
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_args, **_kwargs: print(message, file=sys.stderr)
        checkpoint = checkpoint_of(directory, how.checkpoint)
        spec = make_spec(run.env)
        agent = load_agent(checkpoint, run.policy, spec, training=False).to(choose_device(how.device))
        evaluation = evaluate(
            agent,
            run.env,
            how.episodes,
            greedy=how.greedy,
            seed=how.seed,
            num_envs=how.num_envs,
            num_workers=how.num_workers,
            memory=run.trainer.memory,
            step_timeout=run.trainer.worker_timeout,
        )
    progress = checkpoint.state["progress"]
    return {
        "run": run.run,
        "policy": run.policy.name,
        "env": spec.name,
        "checkpoint": str(checkpoint.path),
        "epoch": progress["epoch"],
        "steps": progress["steps"],
        "greedy": how.greedy,
        "seed": how.seed,
        "memory": run.trainer.memory,
        **evaluation.to_json(),
        "memoryless_ceiling": spec.memoryless_ceiling,
        "mean_return_goal": spec.mean_return_goal,
        "masked_features": [f.name for f in unknown_features(agent.policy.env_spec.features, spec.features)],
    }


@contextmanager
def _nobody_else_prints() -> Iterator[None]:
    """Standard output is ours alone: what simulators and their libraries print, also in workers, goes to the errors."""
    sys.stdout.flush()
    ours = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(ours, 1)
        os.close(ours)
