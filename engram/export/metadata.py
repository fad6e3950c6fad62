"""The metadata of an exported file: shapes, actions, normalisation and versions, as plain data."""

from typing import Any

import torch
from torch import Tensor

import engram
from engram.agent.actions import GaussianActions
from engram.agent.metta_agent import MettaAgent
from engram.agent.normalization import ObservationNormalizer
from engram.export.step import PolicyStep


def describe(agent: MettaAgent, step: PolicyStep, origin: dict[str, Any]) -> dict[str, Any]:
    """The metadata of an export. `origin` names its run and checkpoint."""
    spec = agent.env_spec
    return {
        "version": 1,  # of this layout
        "engram": engram.__version__,
        "torch": torch.__version__,
        **origin,
        "policy": type(agent.policy).__name__,
        "environment": spec.name,
        "inputs": _inputs(step),
        "outputs": _outputs(agent, step),
        "observations": [part.to_json() for part in spec.all_parts],
        "actions": _actions(agent),
        "memory": {
            "size": sum(step.memory_sizes.values()),
            "used": step.use_memory,
            "layers_and_floats": {name: list(shape) for name, shape in agent.memory_shapes().items()},
        },
        "normalisation": _normalisation(agent),
        "window": list(spec.window),
    }


def _inputs(step: PolicyStep) -> list[dict[str, Any]]:
    observations, memory, starts = step.example(1)
    return [_tensor(name, tensor) for name, tensor in {**observations, "memory": memory, "starts": starts}.items()]


def _outputs(agent: MettaAgent, step: PolicyStep) -> list[dict[str, Any]]:
    with torch.no_grad():
        outputs = step(*step.example(1))
    return [_tensor(name, tensor) for name, tensor in zip(output_names(agent), outputs, strict=True)]


def output_names(agent: MettaAgent) -> list[str]:
    distribution = "log_std" if isinstance(agent.action_space, GaussianActions) else "log_probs"
    return ["action", distribution, "value", "next_memory"]


def _tensor(name: str, one_row: Tensor) -> dict[str, Any]:
    return {"name": name, "shape": ["batch", *one_row.shape[1:]], "dtype": str(one_row.dtype).removeprefix("torch.")}


def _actions(agent: MettaAgent) -> dict[str, Any]:
    """The action space, as a checkpoint stores it, with the names of the actions and the pair of each logit."""
    content = agent.env_spec.to_json()
    actions = {**content["action"], "names": content["action_names"]}
    if content["action_max_params"] is not None:
        actions["max_params"] = content["action_max_params"]
        actions["pairs"] = agent.convert_index_to_action(torch.arange(agent.action_space.logits)).tolist()
    return actions


def _normalisation(agent: MettaAgent) -> dict[str, Any]:
    """For information: the graph already normalises."""
    policy = agent.policy
    values = policy.value_normalizer
    modules = policy.named_modules()
    normalizers = {name: module for name, module in modules if isinstance(module, ObservationNormalizer)}
    return {
        "features": [
            {"id": feature.id, "name": feature.name, "divisor": feature.normalization}
            for feature in policy.env_spec.features
        ],
        "observations": {
            name: {"mean": module.mean.tolist(), "variance": module.variance.tolist()}
            for name, module in normalizers.items()
        },
        "value": {"mean": values.mean.item(), "std": values.std.item()},
    }
