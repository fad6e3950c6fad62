"""The trained agent of a run, for verbs that play with it."""

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engram.config.evaluation import PlaySettings
from engram.config.run import RunSettings

if TYPE_CHECKING:
    from engram.agent.metta_agent import MettaAgent


def agent_of_run(directory: Path, settings: PlaySettings, run: RunSettings) -> "tuple[MettaAgent, dict[str, Any]]":
    """The agent of a checkpoint, bound to the environment of `run`, and how far it was trained."""
    from engram.env.registry import make_spec
    from engram.training.checkpoint.origin import checkpoint_of, load_agent
    from engram.training.device import choose_device

    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_args, **_kwargs: print(message, file=sys.stderr)
        checkpoint = checkpoint_of(directory, settings.checkpoint)
        agent = load_agent(checkpoint, run.policy, make_spec(run.env), training=False)
    return agent.to(choose_device(settings.device)), checkpoint.state["progress"]
