"""The two file formats of an exported policy: writes them and runs them as any other program would."""

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from engram.export.step import PolicyStep
from engram.settings import UserError

METADATA = "engram"  # the name of the metadata inside the file
INPUTS = ("memory", "starts")  # after the observations
TRACED_ROWS = 3  # the exported program works for any number

ExportedStep = Callable[[dict[str, np.ndarray], np.ndarray, np.ndarray], tuple[np.ndarray, ...]]


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
