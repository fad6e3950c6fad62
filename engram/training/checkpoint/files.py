"""Checkpoint files: tensors and JSON with checksums, written atomically.

A checkpoint is a directory, written under a temporary name, synced and renamed: `weights.safetensors` and other
groups of tensors, `state.json`, and `manifest.json` with the SHA-256 of each file. Loading one never runs code.

A run keeps the last few as `epoch_N`, and the best one as `best`, a link to `best_epoch_N`, because a link can be
replaced atomically and a directory cannot.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from engram.training.checkpoint.listing import list_checkpoints

BEST = "best"

Groups = dict[str, dict[str, Tensor]]


@dataclass
class Checkpoint:
    path: Path
    state: dict[str, Any]
    groups: Groups


class BadCheckpointError(Exception):
    """A damaged or incomplete checkpoint; the message names the file and the reason."""


def save_checkpoint(
    directory: Path, epoch: int, groups: Mapping[str, Mapping[str, Tensor]], state: dict, keep: int
) -> Path:
    """Write `directory/epoch_N` and delete all but the last `keep` checkpoints."""
    target = directory / f"epoch_{epoch:06d}"
    _write(target, groups, state)
    for old in list_checkpoints(directory)[:-keep]:
        shutil.rmtree(old)
    return target


def save_best(directory: Path, epoch: int, groups: Mapping[str, Mapping[str, Tensor]], state: dict) -> Path:
    """Write `directory/best_epoch_N`, point `directory/best` to it, and delete the best one before."""
    target, link, new_link = directory / f"best_epoch_{epoch:06d}", directory / BEST, directory / f".new_{BEST}"
    _write(target, groups, state)
    new_link.unlink(missing_ok=True)
    new_link.symlink_to(target.name, target_is_directory=True)
    new_link.replace(link)
    _sync(directory)
    for old in list_checkpoints(directory, "best_epoch_"):
        if old != target:
            shutil.rmtree(old)
    return link


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint. Raises BadCheckpointError if any byte differs from what was written."""
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        for name, checksum in manifest.items():
            if _checksum(path / name) != checksum:
                raise BadCheckpointError(f"{path / name} has changed since it was written")
        groups = {name.removesuffix(".safetensors"): load_file(path / name) for name in manifest if _is_group(name)}
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, SafetensorError) as error:
        raise BadCheckpointError(f"{path}: {error}") from error
    return Checkpoint(path, state, groups)


def load_latest(directory: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest intact checkpoint, and the problems of newer ones."""
    problems: list[str] = []
    for path in reversed(list_checkpoints(directory)):
        try:
            return load_checkpoint(path), problems
        except BadCheckpointError as error:
            problems.append(str(error))
    return None, problems


def _write(target: Path, groups: Mapping[str, Mapping[str, Tensor]], state: dict) -> None:
    """Write a checkpoint at `target`; if that fails, `target` is unchanged."""
    directory, temporary = target.parent, target.with_name(f".writing_{target.name}")
    directory.mkdir(parents=True, exist_ok=True)
    for leftover in directory.glob(".writing_*"):
        shutil.rmtree(leftover)
    temporary.mkdir()
    try:
        for name, tensors in groups.items():
            save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, temporary / f"{name}.safetensors")
        (temporary / "state.json").write_text(json.dumps(state, indent=1), encoding="utf-8")
        manifest = {path.name: _checksum(path) for path in sorted(temporary.iterdir())}
        (temporary / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        for path in temporary.iterdir():
            _sync(path)
        _sync(temporary)
        if target.exists():
            shutil.rmtree(target)
        temporary.rename(target)
        _sync(directory)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _is_group(name: str) -> bool:
    return name.endswith(".safetensors")


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
