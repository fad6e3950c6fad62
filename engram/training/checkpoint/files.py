"""Checkpoint files: tensors and JSON with checksums, written atomically.

A checkpoint is a directory, written under a temporary name, synced and renamed: `weights.safetensors` and other
groups of tensors, `state.json`, and `manifest.json` with the SHA-256 of each file. Loading one never runs code, reads
only regular files in its directory, and checks their sizes first.

A run keeps the last few as `epoch_N`, and the best one as `best`, a link to `best_epoch_N`, because a link can be
replaced atomically and a directory cannot.
"""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import psutil
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator
from safetensors import SafetensorError

from engram.env.spec import EnvSpec
from engram.stored.files import (
    MEGABYTE,
    UnreadableError,
    has_control_characters,
    open_file,
    read_json,
    require_inside,
    sync,
)
from engram.training.checkpoint import list_checkpoints

if TYPE_CHECKING:
    from torch import Tensor  # verifying a checkpoint must not wait for torch

BEST = "best"
MANIFEST, STATE = "manifest.json", "state.json"
MAX_JSON = 4 * MEGABYTE
MAX_HEADER = 2 * MEGABYTE  # of a file of tensors: names, shapes and dtypes of about 20,000
MAX_VALUES = 10_000  # of a list or mapping that is validated
MAX_TRIED = 1000  # checkpoints to read in search of an intact one; more take seconds
GROUP_FILE = re.compile(r"([A-Za-z0-9_]+(?:\.rank[0-9]+)?)\.safetensors")

Count = Annotated[int, Field(ge=0, lt=2**62)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Groups = dict[str, dict[str, "Tensor"]]


@dataclass
class Checkpoint:
    path: Path
    state: dict[str, Any]
    groups: Groups


Load = Callable[[Path], Checkpoint]


class BadCheckpointError(Exception):
    """A damaged or incomplete checkpoint; the message names the file and the reason."""


def save_checkpoint(directory: Path, epoch: int, groups: "Mapping[str, Mapping[str, Tensor]]", state: dict) -> Path:
    """Write `directory/epoch_N`."""
    target = directory / f"epoch_{epoch:06d}"
    _write(target, groups, state)
    return target


def save_best(directory: Path, epoch: int, groups: "Mapping[str, Mapping[str, Tensor]]", state: dict) -> Path:
    """Write `directory/best_epoch_N`, point `directory/best` to it, and delete the previous best."""
    target, link, new_link = directory / f"best_epoch_{epoch:06d}", directory / BEST, directory / f".new_{BEST}"
    _write(target, groups, state)
    if link.is_dir() and not link.is_symlink():  # the run was copied by a tool that follows links
        delete(link)
    new_link.unlink(missing_ok=True)
    new_link.symlink_to(target.name, target_is_directory=True)
    new_link.replace(link)
    sync(directory)
    for old in list_checkpoints(directory, "best_epoch_"):
        if old != target:
            delete(old)
    return link


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint. Raises BadCheckpointError if any byte differs from what was written."""
    checkpoint = verify_checkpoint(path)
    from safetensors.torch import load_file

    try:
        checkpoint.groups |= {name: load_file(path / f"{name}.safetensors") for name in checkpoint.groups}
    except (OSError, ValueError, RuntimeError, MemoryError, SafetensorError) as error:
        raise BadCheckpointError(f"{path}: {error}") from error
    return checkpoint


def verify_checkpoint(path: Path) -> Checkpoint:
    """Check every byte of a checkpoint without loading its tensors: the groups are empty."""
    try:
        manifest = _read_manifest(path)
        for name, checksum in manifest.items():
            if _checksum(path / name, path) != checksum:
                raise BadCheckpointError(f"{path / name} has changed since it was written")
        state = read_json(path / STATE, MAX_JSON, inside=path)
    except (OSError, ValueError, MemoryError) as error:
        raise BadCheckpointError(f"{path}: {error}") from error
    if problem := problem_of(state):
        raise BadCheckpointError(f"{path / STATE}: {problem}")
    return Checkpoint(path, state, {match[1]: {} for name in manifest if (match := GROUP_FILE.fullmatch(name))})


def load_latest(directory: Path, load: Load = load_checkpoint) -> tuple[Checkpoint | None, list[str]]:
    """The newest intact checkpoint of a run, and the problems of newer ones. At most MAX_TRIED are read."""
    problems: list[str] = []
    tried = 0
    for path in reversed(list_checkpoints(directory)):
        if not os.path.isfile(path / MANIFEST):
            problems.append(f"{path}: no {MANIFEST}")
            continue
        if tried == MAX_TRIED:
            problems.append(f"{path} and older ones were not tried")
            break
        tried += 1
        try:
            require_inside(path, directory.parent)
            return load(path), problems
        except (BadCheckpointError, UnreadableError) as error:
            problems.append(str(error))
    return None, problems


def delete(path: Path) -> None:
    """Delete a checkpoint. It is renamed first, so that a kill never leaves a part of it under its name."""
    hidden = path.with_name(f".deleting_{path.name}")
    _remove(hidden)
    path.rename(hidden)
    _remove(hidden)


def _read_manifest(path: Path) -> dict[str, str]:
    """The checksums by file name, after checking the kind and size of every file."""
    manifest = read_json(path / MANIFEST, MAX_JSON, inside=path)
    if not isinstance(manifest, dict) or STATE not in manifest or "weights.safetensors" not in manifest:
        raise BadCheckpointError(f"{path / MANIFEST} does not list the files of a checkpoint")
    total = 0
    for name in manifest:
        if name != STATE and not GROUP_FILE.fullmatch(name):
            raise BadCheckpointError(f"{path / MANIFEST} lists {name[:100]!r}, which is not a file of a checkpoint")
        total += _check_size(path / name, path, MAX_JSON if name == STATE else psutil.virtual_memory().total)
    if total > psutil.virtual_memory().total:
        raise BadCheckpointError(f"{path}: {total:,} bytes are more than this machine's memory")
    return manifest


def _check_size(path: Path, directory: Path, limit: int) -> int:
    """The size of a file. Raises if it is too large, or if it has the suffix of a tensor file but cannot be one."""
    with open_file(path, limit, inside=directory) as file:
        size = os.fstat(file.fileno()).st_size
        if path.name != STATE:
            header = int.from_bytes(file.read(8), "little")
            if not 2 <= header <= min(MAX_HEADER, size - 8):
                raise BadCheckpointError(f"{path} has changed since it was written")
    return size


def _write(target: Path, groups: "Mapping[str, Mapping[str, Tensor]]", state: dict) -> None:
    """Write a checkpoint at `target`. If that fails, `target` is unchanged, and the error is an OSError."""
    directory, temporary = target.parent, target.with_name(f".writing_{target.name}")
    directory.mkdir(parents=True, exist_ok=True)
    for leftover in (*directory.glob(".writing_*"), *directory.glob(".deleting_*")):
        _remove(leftover)
    temporary.mkdir()
    try:
        for name, tensors in groups.items():
            on_cpu = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
            _save_tensors(on_cpu, temporary / f"{name}.safetensors")
        (temporary / STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")
        manifest = {path.name: _checksum(path, temporary) for path in sorted(temporary.iterdir())}
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        for path in temporary.iterdir():
            sync(path)
        sync(temporary)
        if os.path.lexists(target):
            delete(target)
        temporary.rename(target)
        sync(directory)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _save_tensors(tensors: "dict[str, Tensor]", path: Path) -> None:
    from safetensors.torch import save_file

    try:
        save_file(tensors, path)
    except SafetensorError as error:  # which does not subclass OSError
        found = re.search(r"os error (\d+)", str(error))
        if found is None:
            raise
        number = int(found[1]) or errno.EIO
        raise OSError(number, os.strerror(number), str(path)) from error


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def _checksum(path: Path, directory: Path) -> str:
    with open_file(path, psutil.virtual_memory().total, inside=directory) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _short(value: Any) -> Any:
    if isinstance(value, list | dict) and len(value) > MAX_VALUES:
        raise ValueError(f"more than {MAX_VALUES:,} values")
    return value


Short = BeforeValidator(_short)  # pydantic's max_length comes too late: it first describes every wrong value


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class ProgressState(_Part):
    steps: Count
    epoch: Count
    seconds: Seconds


class ExplosionState(_Part):
    norms: Annotated[list[float], Short]
    above: Count


class RankStateJson(_Part):
    has_env_state: bool
    env_dtypes: Annotated[dict[str, str], Short] = {}


class ScoreState(_Part):
    evaluated: bool
    value: float


class EnvState(_Part):
    settings: dict[str, Any]
    seed: Annotated[int, Field(ge=0, lt=2**63)]


class CheckpointState(_Part):
    """The content of `state.json`. Checkpoints of earlier versions have no `ranks`."""

    progress: ProgressState
    recent_returns: Annotated[list[Finite], Short]
    schedules: Annotated[dict[str, dict[str, Any]], Short]
    explosion: ExplosionState
    env: EnvState | None = None
    env_spec: dict[str, Any]
    policy_spec: dict[str, Any]
    sizes: Annotated[dict[str, Count], Short] = {}
    ranks: Annotated[list[RankStateJson], Short, Field(min_length=1)] | None = None
    score: ScoreState | None = None

    @field_validator("env_spec", "policy_spec")
    @classmethod
    def _is_a_spec(cls, spec: dict[str, Any]) -> dict[str, Any]:
        try:
            EnvSpec.from_json(spec)
        except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
            raise ValueError(f"not an environment's spec: {type(error).__name__} {error}") from error
        return spec


def problem_of(state: Any) -> str | None:
    """The problem of a checkpoint's state; None if it is valid."""
    if has_control_characters(state):
        return "a name in it holds control characters"
    try:
        CheckpointState.model_validate(state)
    except ValidationError as error:
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except ValueError as error:  # unpaired surrogates
        return str(error)
    return None
