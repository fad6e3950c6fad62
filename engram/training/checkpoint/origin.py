"""Where weights come from: which checkpoint, and the agent that is made of it, in its own environment or another."""

import logging
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from engram.agent.metta_agent import MettaAgent
from engram.agent.settings import Agent, PyAgent
from engram.env.spec import EnvSpec
from engram.settings import UserError
from engram.training.checkpoint.files import BEST, BadCheckpointError, Checkpoint, load_checkpoint, load_latest

SHOWN = 6  # tensors that are named when many do not fit

log = logging.getLogger("engram")


def latest_checkpoint(directory: Path) -> Checkpoint | None:
    """The newest whole checkpoint of a run, if it has any; those that are damaged are said aloud.

    A run of which none can be read is not begun anew, over what is left of it.
    """
    anew = "remove them to begin anew"
    return _newest(directory, "", f"begin with the best one by init_from={{best}} run=OTHER, or {anew}", anew)


def checkpoint_of(directory: Path, which: str) -> Checkpoint:
    """The `latest` checkpoint of a run, its `best`, or any by its path."""
    if which not in ("latest", BEST):
        return find_checkpoint(Path(which), "checkpoint")
    if which == BEST and not (directory / "checkpoints" / BEST).exists():
        raise UserError(
            f"checkpoint: {directory} has no best one yet, which takes some episodes: try checkpoint=latest"
        )
    return find_checkpoint(directory if which == "latest" else directory / "checkpoints" / BEST, "checkpoint")


def find_checkpoint(path: Path, option: str) -> Checkpoint:
    """The checkpoint at a path: itself one, or a run's directory, of which it is the newest."""
    if not path.is_dir():
        raise UserError(f"{option}: there is no directory {path}: give that of a run or of one of its checkpoints")
    if (path / "manifest.json").exists() or (path / "state.json").exists():
        try:
            return load_checkpoint(path)
        except BadCheckpointError as error:
            raise UserError(f"{option}: the checkpoint is not usable: {error}") from error
    checkpoint = _newest(path, f"{option}: ", "give another, such as the best one, {best}", "give another")
    if checkpoint is None:
        raise UserError(f"{option}: {path} has no checkpoint that can be used: give another, or train it first")
    return checkpoint


def load_agent(checkpoint: Checkpoint, policy: PyAgent | Agent, spec: EnvSpec, training: bool) -> MettaAgent:
    """The agent of a checkpoint, in the environment of `spec`.

    Features that its policy does not know it gets room for in training; in evaluation they are masked.
    """
    agent = MettaAgent(_made_for(checkpoint, spec), policy)
    _load(agent, checkpoint.groups["weights"], checkpoint.path)
    agent.train(training)
    agent.bind(spec)
    return agent


def begin_from(path: Path, policy: PyAgent | Agent, spec: EnvSpec) -> MettaAgent:
    """An agent that begins with the weights of another run, and with nothing else of it."""
    checkpoint = find_checkpoint(path, "init_from")
    weights = checkpoint.groups["weights"]
    # Where the other run began matters no more: the L2 loss is to pull to where this one does.
    checkpoint.groups["weights"] = {name: tensor for name, tensor in weights.items() if ".l2_init." not in name}
    agent = load_agent(checkpoint, policy, spec, training=True)
    log.info("began with the weights of %s", checkpoint.path)
    return agent


def _newest(directory: Path, option: str, with_best: str, without: str) -> Checkpoint | None:
    """The newest whole checkpoint; if none of those that are there is, what to do instead depends on the best one."""
    where = directory / "checkpoints"
    checkpoint, problems = load_latest(where)
    if problems and checkpoint is None:
        instead = with_best.format(best=where / BEST) if _is_whole(where / BEST) else without
        raise UserError(f"{option}none of the checkpoints in {where} can be read ({problems[0]}): {instead}")
    for problem in problems:
        log.warning("checkpoint not usable, taking the one before: %s", problem)
    return checkpoint


def _is_whole(path: Path) -> bool:
    try:
        load_checkpoint(path)
    except BadCheckpointError:
        return False
    return True


def _made_for(checkpoint: Checkpoint, spec: EnvSpec) -> EnvSpec:
    """What the policy was made for: in its own environment that very spec, which JSON does not hold to the last bit."""
    stored = checkpoint.state["policy_spec"]
    return spec if stored == spec.to_json() else EnvSpec.from_json(stored)


def _load(agent: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Raises one `UserError` with all tensors that do not fit."""
    own = agent.state_dict()
    there = {name: tensor for name, tensor in weights.items() if ".l2_init." not in name}
    problems = [f"{name} is not there" for name in own if name not in there and ".l2_init." not in name]
    problems += [f"{name} is not here" for name in there if name not in own]
    problems += [
        f"{name} is {list(there[name].shape)} there and {list(tensor.shape)} here"
        for name, tensor in own.items()
        if name in there and there[name].shape != tensor.shape
    ]
    if problems:
        more = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
        raise UserError(
            f"the weights of {path} do not fit this policy: {'; '.join([*problems[:SHOWN], *more])}. "
            "Choose the policy and the options that they were trained with"
        )
    agent.load_state_dict(weights)
