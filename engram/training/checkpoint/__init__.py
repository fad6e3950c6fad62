"""Checkpoints: writing, reading, retention and resuming."""

import re
from pathlib import Path


def list_checkpoints(directory: Path, prefix: str = "epoch_") -> list[Path]:
    """Checkpoints, oldest first. Other names, such as `epoch_000001_backup`, belong to the user and are ignored."""
    pattern = re.compile(rf"{prefix}[0-9]+")
    found = [path for path in directory.glob(f"{prefix}*") if pattern.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.name.removeprefix(prefix)))
