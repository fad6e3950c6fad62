"""Exports an agent to a file, and compares the two before the file appears."""

import os
from pathlib import Path
from typing import Any, NamedTuple

from engram.agent.metta_agent import MettaAgent
from engram.export.check import Agreement, compare
from engram.export.formats import FORMATS, INPUTS, require_packages, trace
from engram.export.metadata import describe, output_names
from engram.export.step import PolicyStep
from engram.settings import UserError
from engram.stored.files import check_writable


class Export(NamedTuple):
    path: Path
    metadata: dict[str, Any]
    agreement: Agreement


def choose_format(path: Path | None, format_name: str | None) -> str:
    """The format that was asked for, or that of the file's suffix; ONNX by default."""
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
    """Write a file that runs without Engram, after `steps` steps in which it did what the agent does.

    If the two disagree, raises `UserError` and leaves no file.
    """
    require_packages(format_name)
    check_writable(path, "--out")
    form = FORMATS[format_name]
    step = PolicyStep(agent.cpu(), use_memory)
    about = describe(agent, step, origin or {})
    temporary = path.with_name(f".{path.name}.{os.getpid()}{form.suffix}")
    try:
        form.write(trace(step), [*step.fields, *INPUTS], output_names(agent), about, temporary)
        agreement = compare(agent, step, form.load(temporary), env_settings, steps)
        temporary.replace(path)
    except OSError as error:  # the disk is full, for example
        raise UserError(f"--out: {path} cannot be written ({error.strerror or error}): give a different path") from None
    finally:
        temporary.unlink(missing_ok=True)
    return Export(path, about, agreement)
