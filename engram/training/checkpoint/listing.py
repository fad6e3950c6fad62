"""Which of the directories beside each other are checkpoints, by name. Light to import: torch is not loaded."""

import re
from pathlib import Path


def list_checkpoints(directory: Path, prefix: str = "epoch_") -> list[Path]:
    """Oldest first. What is not a prefix and a number, such as a copy of a checkpoint, is the user's."""
    pattern = re.compile(rf"{prefix}[0-9]+")
    found = [path for path in directory.glob(f"{prefix}*") if pattern.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.name.removeprefix(prefix)))
