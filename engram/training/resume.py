"""What a checkpoint holds of a run, and how a run goes on from one."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram.settings import UserError
from engram.training.checkpoint import Checkpoint, Groups
from engram.training.loop import Training
from engram.training.settings import Trainer
from engram.training.sizes import Sizes, resolve_sizes

CHOSEN = ("num_envs", "batch_size", "minibatch_size", "update_epochs")  # sizes that settings leave to the machine
KEPT = (*CHOSEN, "rows", "horizon", "segments")

log = logging.getLogger("engram")


def sizes_of_run(trainer: Trainer, checkpoint: Checkpoint | None, agents: int, device: str, cores: int) -> Sizes:
    """The sizes that a run began with, whatever machine it goes on with; if it begins, those that fit this one."""
    here = resolve_sizes(trainer, agents, device, cores)
    if checkpoint is None:
        return here
    stored: Mapping[str, int] = checkpoint.state["sizes"]
    given = {name: stored[name] for name in CHOSEN if getattr(trainer, name) is None}
    sizes = resolve_sizes(trainer.model_copy(update=given), agents, device, cores)
    if changed := _differences(sizes, stored, KEPT):
        raise UserError(f"{checkpoint.path} is of a run with other sizes ({', '.join(changed)}): start another run")
    if changed := _differences(here, stored, CHOSEN):
        log.info("sizes are those the run began with, not what would be chosen here: %s", ", ".join(changed))
    return sizes


def snapshot(training: Training) -> tuple[Groups, dict[str, Any]]:
    """Everything that changes while training: groups of tensors, and the rest as JSON."""
    env_state, teacher = training.env.state(), training.rollout.teacher
    groups: Groups = {
        "weights": dict(training.agent.state_dict()),
        "optimizer": _optimizer_tensors(training.optimizer),
        "memory": dict(training.agent.stored_memory()),
        "random": {"generator": training.generator.get_state(), "torch": torch.get_rng_state()},
    }
    state = {
        "progress": {name: getattr(training.progress, name) for name in ("steps", "epoch", "seconds")},
        "recent_returns": list(training.episodes.recent),
        "schedules": training.schedules.state(),
        "explosion": training.explosion.state(),
        "env_spec": training.agent.env_spec.to_json(),
        "policy_spec": training.agent.policy.env_spec.to_json(),
        "has_env_state": env_state is not None,
    }
    if teacher is not None:
        groups["teacher"] = dict(teacher.agent.stored_memory())
    if env_state is not None:
        groups["environment"] = {name: _to_tensor(array) for name, array in env_state.items()}
        state["env_dtypes"] = {name: str(array.dtype) for name, array in env_state.items()}
    return groups, state


def restore(training: Training, checkpoint: Checkpoint) -> str:
    """Put a run back to where a checkpoint was taken; returns how exactly that was possible."""
    groups, state = checkpoint.groups, checkpoint.state
    training.agent.load_state_dict(groups["weights"])
    _load_optimizer(training.optimizer, groups["optimizer"])
    training.generator.set_state(groups["random"]["generator"])
    torch.set_rng_state(groups["random"]["torch"])
    for name, value in state["progress"].items():
        setattr(training.progress, name, value)
    training.episodes.recent.extend(state["recent_returns"])
    training.schedules.load_state(state["schedules"])
    training.explosion.load_state(state["explosion"])
    if state["has_env_state"]:
        dtypes = state["env_dtypes"]
        arrays = {name: _to_array(tensor, dtypes[name]) for name, tensor in groups["environment"].items()}
        if training.env.restore(arrays):
            training.agent.load_stored_memory(groups["memory"])
            if training.rollout.teacher is not None:
                training.rollout.teacher.agent.load_stored_memory(groups["teacher"])
            return "resume: exact"
    training.env.reset()
    training.agent.reset_memory()
    return "resume: environments reset (this kind cannot be put back to where it was), memory cleared with them"


def _differences(sizes: Sizes, stored: Mapping[str, int], names: tuple[str, ...]) -> list[str]:
    now = sizes._asdict()
    return [f"{name} {stored[name]}, not {now[name]}" for name in names if stored[name] != now[name]]


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    states = optimizer.state_dict()["state"]
    return {f"{index}.{name}": torch.as_tensor(v) for index, state in states.items() for name, v in state.items()}


def _load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    states: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, name = key.split(".", 1)
        states.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})


# safetensors has no dtype for some of NumPy's: unsigned integers wider than a byte travel as their bytes.


def _to_tensor(array: np.ndarray) -> Tensor:
    array = np.ascontiguousarray(array)
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.view(f"i{array.dtype.itemsize}")
    return torch.from_numpy(array)


def _to_array(tensor: Tensor, dtype: str) -> np.ndarray:
    array = tensor.numpy()
    return array if str(array.dtype) == dtype else array.view(dtype)
