"""What a checkpoint holds of a run, and how a run goes on from one."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram.training.checkpoint import Checkpoint, Groups
from engram.training.loop import Training


def snapshot(training: Training) -> tuple[Groups, dict[str, Any]]:
    """Everything that changes while training: groups of tensors, and the rest as JSON."""
    env_state = training.env.state()
    groups: Groups = {
        "weights": dict(training.agent.state_dict()),
        "optimizer": _optimizer_tensors(training.optimizer),
        "memory": dict(training.agent.stored_memory()),
        "random": {"generator": training.generator.get_state(), "torch": torch.get_rng_state()},
    }
    state = {
        "progress": {name: getattr(training.progress, name) for name in ("steps", "epoch", "seconds")},
        "recent_returns": list(training.episodes.recent),
        "env_spec": training.agent.env_spec.to_json(),
        "has_env_state": env_state is not None,
    }
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
    if state["has_env_state"]:
        dtypes = state["env_dtypes"]
        arrays = {name: _to_array(tensor, dtypes[name]) for name, tensor in groups["environment"].items()}
        if training.env.restore(arrays):
            training.agent.load_stored_memory(groups["memory"])
            return "resume: exact"
    training.env.reset()
    training.agent.reset_memory()
    return "resume: environments reset (this kind cannot be put back to where it was), memory cleared with them"


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
