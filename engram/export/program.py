"""The exported program: one acting step of an agent as a function of tensors, written and loaded in two formats."""

# B rows, M floats of memory per row, W logits, D dimensions of continuous actions

import json
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from engram.agent.actions import ActionSample, ActionSpace, GaussianActions
from engram.agent.metta_agent import MettaAgent
from engram.agent.observations import with_parts
from engram.settings import UserError
from engram.training.evaluate import copy_with_own_memory

OBSERVATIONS = "observations"  # the name of `env_obs` outside of Engram
METADATA = "engram"  # the name of the metadata inside the file
INPUTS = ("memory", "starts")  # after the observations
TRACED_ROWS = 3  # the exported program works for any number

ExportedStep = Callable[[dict[str, np.ndarray], np.ndarray, np.ndarray], tuple[np.ndarray, ...]]


class PolicyStep(nn.Module):
    """`step(observations, memory, starts) -> (action, distribution, value, memory)`, on a copy of an agent.

    Observations are tensors [B, ...] by name, memory is [B, M] (zeros to begin with), and starts [B] are true where an
    observation is the first of an episode. The action is the most likely one. The distribution is log-probabilities
    [B, W], or the log standard deviations [B, D] of continuous actions.

    Nothing is stored between calls, so `torch.export` and `torch.onnx` see the whole computation.
    """

    def __init__(self, agent: MettaAgent, use_memory: bool = True) -> None:
        super().__init__()
        self.agent = copy_with_own_memory(agent)
        self.use_memory = use_memory
        self.agent.policy.action_space = GreedyActions(agent.action_space)  # type: ignore[assignment]
        self.memory_sizes = {name: math.prod(shape) for name, shape in agent.memory_shapes().items()}
        seen = with_parts(agent.env_spec, agent.get_agent_experience_spec().unsqueeze(0))
        self.keys = {_graph_name(key): key for key in seen.keys(include_nested=True, leaves_only=True)}
        self.fields = {name: field[0] for name, field in self.inputs(seen).items()}  # one row of each
        self.eval()

    def forward(self, observations: dict[str, Tensor], memory: Tensor, starts: Tensor) -> tuple[Tensor, ...]:
        td = TensorDict({}, batch_size=[starts.shape[0]])
        for name, tensor in observations.items():
            td[self.keys[name]] = tensor
        td["starts"] = starts if self.use_memory else torch.ones_like(starts)
        stores = self.agent.policy.stores()
        try:
            for name, part in zip(stores, memory.split([*self.memory_sizes.values()], dim=1), strict=True):
                stores[name].carried = part.unflatten(1, stores[name].memory_NLS.shape[1:])
            td = self.agent(td)
            parts = [store.carried.flatten(1) for store in stores.values() if store.carried is not None]
        finally:
            for store in stores.values():
                store.carried = None
        return td["actions"], td["full_log_probs"], td["values"], torch.cat(parts, dim=1) if parts else memory

    def inputs(self, td: TensorDictBase) -> dict[str, Tensor]:
        """The observations of a td, by their names in the graph."""
        seen = with_parts(self.agent.env_spec, td)
        return {name: seen[key] for name, key in self.keys.items()}

    def example(self, rows: int) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Arguments of a call: empty observations and memory, at the start of an episode."""
        observations = {name: field.new_zeros(rows, *field.shape) for name, field in self.fields.items()}
        return observations, torch.zeros(rows, sum(self.memory_sizes.values())), torch.ones(rows, dtype=torch.bool)


class GreedyActions:
    """An action space whose `sample` takes the most likely action, with operators that other runtimes have."""

    def __init__(self, actions: ActionSpace) -> None:
        self.actions, self.logits, self.noise = actions, actions.logits, actions.noise

    def sample(self, logits: Tensor, noise: Tensor) -> ActionSample:
        if isinstance(self.actions, GaussianActions):
            mean, log_std = self.actions.parameters(logits)
            log_density = -log_std.sum(-1)  # at the mean, without the constant; an exported step does not return it
            return ActionSample(mean.reshape(-1, *self.actions.shape), log_density, log_std)
        sample = self.actions.sample(logits, noise)
        return sample._replace(actions=self.actions.greedy(sample.full_log_probs, sample.actions))


class Format(NamedTuple):
    suffix: str
    packages: tuple[str, ...]  # beside PyTorch
    runtime: str
    write: Callable[[torch.export.ExportedProgram, list[str], list[str], dict[str, Any], Path], None]
    load: Callable[[Path], ExportedStep]


def trace(step: PolicyStep) -> torch.export.ExportedProgram:
    """The graph of a step, for any number of rows; raises `UserError` if the policy cannot be traced."""
    arguments, batch = step.example(TRACED_ROWS), torch.export.Dim("batch")
    shapes = ({name: {0: batch} for name in arguments[0]}, {0: batch}, {0: batch})
    try:
        with torch.no_grad(), _quiet():
            return torch.export.export(step, arguments, dynamic_shapes=shapes)
    except UserError:
        raise
    except Exception as error:  # the policy's own code may raise anything under torch.export
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UserError(
            f"export: {type(step.agent.policy).__name__} cannot be traced ({reason}): its forward must not depend on "
            "the values of tensors or on a fixed number of rows. See docs/export.md"
        ) from error


def write_onnx(
    program: torch.export.ExportedProgram, inputs: list[str], outputs: list[str], about: dict[str, Any], path: Path
) -> None:
    rows = {0: "batch"}  # the name of the dimension; the program makes it dynamic
    shapes = ({name: rows for name in inputs if name not in INPUTS}, rows, rows)
    with _quiet():
        graph = torch.onnx.export(
            program, input_names=inputs, output_names=outputs, dynamic_shapes=shapes, dynamo=True, verbose=False
        )
        assert graph is not None
        graph.model.metadata_props[METADATA] = json.dumps(about)
        graph.save(path, external_data=False)


def load_onnx(path: Path) -> ExportedStep:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    known = {each.name for each in session.get_inputs()}

    def step(observations: dict[str, np.ndarray], memory: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, ...]:
        given = {**observations, "memory": memory, "starts": starts}
        return tuple(session.run(None, {name: array for name, array in given.items() if name in known}))

    return step


def write_torch(
    program: torch.export.ExportedProgram, inputs: list[str], outputs: list[str], about: dict[str, Any], path: Path
) -> None:
    with _quiet():
        torch.export.save(program, path, extra_files={METADATA: json.dumps(about)})


def load_torch(path: Path) -> ExportedStep:
    with _quiet():
        module = torch.export.load(path).module()

    def step(observations: dict[str, np.ndarray], memory: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, ...]:
        tensors = {name: torch.from_numpy(array) for name, array in observations.items()}
        with torch.no_grad():
            outputs = module(tensors, torch.from_numpy(memory), torch.from_numpy(starts))
        return tuple(output.numpy() for output in outputs)

    return step


FORMATS = {
    "onnx": Format(".onnx", ("onnx", "onnxscript", "onnxruntime"), "onnxruntime", write_onnx, load_onnx),
    "torch": Format(".pt2", (), "torch.export", write_torch, load_torch),
}


def require_packages(name: str) -> None:
    missing = [package for package in FORMATS[name].packages if find_spec(package) is None]
    if missing:
        raise UserError(
            f"--format {name} needs {', '.join(missing)}: pip install 'engram-rl[export]', or use --format torch"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences exporters, which log every step and warn about future versions."""
    names = ("onnxscript", "onnx_ir", "torch.onnx", "torch.export")
    levels = {name: logging.getLogger(name).level for name in names}
    try:
        for name in names:
            logging.getLogger(name).setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _graph_name(key: str | tuple[str, ...]) -> str:
    """`observations`, or `observations.image` and so on for its parts; other fields keep their names."""
    first, *rest = [key] if isinstance(key, str) else [*key]
    return ".".join([OBSERVATIONS if first == "env_obs" else first, *rest])
