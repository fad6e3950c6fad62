"""Exports an agent to a file with metadata, and checks the file against the agent before it appears."""

import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import engram
from engram.agent.actions import GaussianActions
from engram.agent.metta_agent import MettaAgent
from engram.agent.normalization import ObservationNormalizer
from engram.export.check import Agreement, compare
from engram.export.program import FORMATS, INPUTS, PolicyStep, require_packages, trace
from engram.settings import UserError
from engram.stored.files import check_writable


class Export(NamedTuple):
    path: Path
    metadata: dict[str, Any]
    agreement: Agreement


def choose_format(path: Path | None, format_name: str | None) -> str:
    """The given format, or that of the file's suffix; ONNX by default."""
    if format_name and format_name not in FORMATS:
        raise UserError(f"format: {format_name!r} is not one of {', '.join(FORMATS)}")
    by_suffix = None if path is None else {each.suffix: name for name, each in FORMATS.items()}.get(path.suffix)
    if format_name and by_suffix and format_name != by_suffix:
        raise UserError(
            f"--out: {path} looks like --format {by_suffix}, but --format {format_name} was given: "
            f"name it {path.with_suffix(FORMATS[format_name].suffix).name}"  # type: ignore[union-attr]
        )
    if path is not None and not format_name and not by_suffix:
        raise UserError(f"--out: {path} does not say its format: name it .onnx or .pt2, or give the format")
    return format_name or by_suffix or "onnx"


def export_agent(
    agent: MettaAgent,
    path: Path,
    format_name: str,
    env_settings: Any,
    *,
    use_memory: bool = True,
    origin: dict[str, Any] | None = None,
    steps: int = 1000,
) -> Export:
    """Write a file that runs without Engram, and compare it with the agent over `steps` steps.

    If the two disagree, raises `UserError` and leaves no file.
    """
    require_packages(format_name)
    check_writable(path, "--out")
    file_format = FORMATS[format_name]
    step = PolicyStep(agent.cpu(), use_memory)
    about = {**describe(agent, step, origin or {}), "reward_scale": getattr(env_settings, "reward_scale", 1.0)}
    temporary = path.with_name(f".{path.name}.{os.getpid()}{file_format.suffix}")
    try:
        file_format.write(trace(step), [*step.fields, *INPUTS], output_names(agent), about, temporary)
        agreement = compare(agent, step, file_format.load(temporary), env_settings, steps)
        temporary.replace(path)
    except OSError as error:  # the disk is full, for example
        raise UserError(f"--out: {path} cannot be written ({error.strerror or error}): give a different path") from None
    finally:
        temporary.unlink(missing_ok=True)
    return Export(path, about, agreement)


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
    """The action space as a checkpoint stores it, the names of the actions, and the (type, parameter) of each logit."""
    content = agent.env_spec.to_json()
    actions = {**content["action"], "names": content["action_names"]}
    if content["action_max_params"] is not None:
        actions["max_params"] = content["action_max_params"]
        actions["pairs"] = agent.convert_index_to_action(torch.arange(agent.action_space.logits)).tolist()
    return actions


def _normalisation(agent: MettaAgent) -> dict[str, Any]:
    """The statistics of all normalisation, for information only: the exported graph already normalises."""
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
