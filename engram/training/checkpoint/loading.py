"""Finds checkpoints and loads agents from them, for their own environment or a different one."""

import logging
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from engram.agent.settings import PyAgent, YamlAgent
from engram.env.spec import EnvSpec
from engram.nearest import suggestion
from engram.settings import UserError, printable
from engram.stored.files import UnreadableError, require_inside
from engram.training.checkpoint.files import (
    BEST,
    BadCheckpointError,
    Checkpoint,
    Load,
    load_checkpoint,
    load_latest,
    verify_checkpoint,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from engram.agent.metta_agent import MettaAgent

CHOICES = ("latest", BEST)
SHOWN = 6  # mismatched tensors or unreadable checkpoints to name

log = logging.getLogger("engram")


def latest_checkpoint(directory: Path, load: Load = load_checkpoint) -> Checkpoint | None:
    """The newest readable checkpoint of a run, if it has any, with a warning about newer unreadable ones.

    If none is readable, raises and leaves the run untouched.
    """
    restart = "remove them to start from the beginning"
    fix_with_best = f"start from the best one with init_from={{best}} run=OTHER, or {restart}"
    return _newest(directory, "", fix_with_best, restart, load)


def checkpoint_of(directory: Path, which: str, load: Load = load_checkpoint) -> Checkpoint:
    """The `latest` checkpoint of a run, its `best`, or any by its path."""
    if which not in CHOICES:
        if not isinstance(which, str | os.PathLike) or not str(which):
            raise UserError(f"checkpoint: {which!r} is not a checkpoint: give latest, best or the path of one")
        hint = suggestion(str(which), CHOICES)
        if hint and not os.path.exists(which):
            raise UserError(f"checkpoint: no checkpoint {str(which)!r}{hint}")
        return find_checkpoint(Path(which), "checkpoint", load)
    if which == BEST and not (directory / "checkpoints" / BEST).exists():
        raise UserError(
            f"checkpoint: {directory} has no best checkpoint yet (it takes some episodes): try checkpoint=latest"
        )
    path = directory if which == "latest" else directory / "checkpoints" / BEST
    try:
        require_inside(path, directory)
    except UnreadableError as error:
        raise UserError(f"checkpoint: {error}") from error
    return find_checkpoint(path, "checkpoint", load)


def find_checkpoint(path: Path, option: str, load: Load = load_checkpoint) -> Checkpoint:
    """The checkpoint at a path, or the newest one of the run at that path.

    With `verify_checkpoint`, no tensors are loaded: a bad checkpoint is refused before torch is imported.
    """
    if not os.path.isdir(path):
        raise UserError(f"{option}: no such directory: {path}. Give a run or one of its checkpoints")
    if (path / "manifest.json").exists() or (path / "state.json").exists():
        try:
            return load(path)
        except BadCheckpointError as error:
            raise UserError(f"{option}: the checkpoint is not readable: {error}") from error
    checkpoint = _newest(path, f"{option}: ", "use another one, such as the best, {best}", "use another one", load)
    if checkpoint is None:
        raise UserError(f"{option}: {path} has no readable checkpoint: use another run, or train this one first")
    return checkpoint


def load_agent(checkpoint: Checkpoint, policy: PyAgent | YamlAgent, spec: EnvSpec, training: bool) -> "MettaAgent":
    """The agent of a checkpoint, bound to the environment of `spec`.

    In training the policy grows inputs for features it does not know; in evaluation they are masked.
    """
    from engram.agent.metta_agent import MettaAgent

    agent = MettaAgent(_policy_spec(checkpoint, spec), policy)
    _load(agent, checkpoint.groups["weights"], checkpoint.path)
    agent.train(training)
    agent.bind(spec)
    return agent


def begin_from(path: Path, policy: PyAgent | YamlAgent, spec: EnvSpec) -> "MettaAgent":
    """A new agent with the weights of another run, and none of its other state."""
    checkpoint = find_checkpoint(path, "init_from")
    weights = checkpoint.groups["weights"]
    # L2-init pulls towards this run's initial weights, not the other run's.
    checkpoint.groups["weights"] = {name: tensor for name, tensor in weights.items() if ".l2_init." not in name}
    agent = load_agent(checkpoint, policy, spec, training=True)
    log.info("started with the weights of %s", checkpoint.path)
    return agent


def _newest(directory: Path, prefix: str, fix_with_best: str, fix: str, load: Load) -> Checkpoint | None:
    """The newest readable checkpoint; None if there are no checkpoints.

    If none of them is readable, raises with `prefix` and a fix: `fix_with_best` if the best checkpoint is readable.
    """
    where = directory / "checkpoints"
    checkpoint, problems = load_latest(where, load)
    if problems and checkpoint is None:
        best = where / BEST
        reasons = "; … ".join(dict.fromkeys((problems[0], problems[-1])))
        raise UserError(
            f"{prefix}none of the checkpoints in {where} is readable ({reasons}): "
            f"{fix_with_best.format(best=best) if _is_readable(best) else fix}"
        )
    if load is verify_checkpoint:  # it is loaded later, with these warnings
        return checkpoint
    for problem in problems[:SHOWN]:
        log.warning("checkpoint not readable, using the one before: %s", problem)
    if len(problems) > SHOWN:
        log.warning("%s more checkpoints are not readable", f"{len(problems) - SHOWN:,}")
    return checkpoint


def _is_readable(path: Path) -> bool:
    try:
        require_inside(path, path.parents[1])
        verify_checkpoint(path)
    except (BadCheckpointError, UnreadableError):
        return False
    return True


def _policy_spec(checkpoint: Checkpoint, spec: EnvSpec) -> EnvSpec:
    """The spec the policy was built for: `spec` itself if it is stored as the same JSON, which omits some details."""
    stored = checkpoint.state["policy_spec"]
    return spec if stored == spec.to_json() else EnvSpec.from_json(stored)


def _load(agent: "nn.Module", weights: "Mapping[str, Tensor]", path: Path) -> None:
    """Raises one `UserError` that names all mismatched tensors."""
    own = agent.state_dict()
    # L2-init is a setting of the trainer: its copies of the weights may be missing here or there.
    one_sided = {name for name in own.keys() ^ weights.keys() if ".l2_init." in name}
    saved, expected = ({n: t for n, t in tensors.items() if n not in one_sided} for tensors in (weights, own))
    if problems := mismatches(saved, expected, finite=[name for name, _ in agent.named_parameters()]):
        raise UserError(
            f"the weights of {path} do not fit this policy: {problems}. "
            "Use the policy and options they were trained with"
        )
    agent.load_state_dict(weights)


def mismatches(tensors: "Mapping[str, Tensor]", expected: "Mapping[str, Tensor]", finite: Collection[str]) -> str:
    """The differences from the expected names, shapes and dtypes, and NaN or infinity in the tensors named in `finite`.

    Optimisers and kernels do not check shapes themselves.
    """
    problems = [f"{name} is missing" for name in expected if name not in tensors]
    for name, tensor in tensors.items():
        own = expected.get(name)
        if own is None:
            problems.append(f"{printable(name[:100])} is unexpected")
        elif tensor.shape != own.shape:
            problems.append(f"{name} is {list(tensor.shape)}, expected {list(own.shape)}")
        elif tensor.dtype != own.dtype:
            problems.append(f"{name} is {str(tensor.dtype)[6:]}, expected {str(own.dtype)[6:]}")
        elif name in finite and not tensor.isfinite().all():
            problems.append(f"{name} holds NaN or infinity")
    more = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
    return "; ".join([*problems[:SHOWN], *more])
