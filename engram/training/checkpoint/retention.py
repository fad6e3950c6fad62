"""Retention: which checkpoints of a run are kept."""

from pathlib import Path

from engram.training.checkpoint.files import BadCheckpointError, delete, load_checkpoint
from engram.training.checkpoint.listing import list_checkpoints

Stamp = tuple[tuple[str, int, int, int], ...]


class Retention:
    """Keeps the last few checkpoints that could be loaded; unreadable ones do not count.

    Whatever is older than those is deleted. Unreadable checkpoints that are newer are left for the user to see.
    """

    def __init__(self, directory: Path, keep: int) -> None:
        self.directory, self.keep = directory, keep
        self._readable: dict[Path, Stamp] = {}  # their files as they were when they were last read or written

    def clean(self, written: Path) -> None:
        """Delete what is too old, now that `written` is complete."""
        self._readable[written] = _stamp(written)
        checkpoints = list_checkpoints(self.directory)
        kept = 0
        for path in reversed(checkpoints):
            if kept == self.keep:
                delete(path)
                self._readable.pop(path, None)
            elif self._is_readable(path):
                kept += 1

    def _is_readable(self, path: Path) -> bool:
        """Whether a checkpoint can be loaded. One whose files are unchanged is not read again."""
        stamp = _stamp(path)
        if stamp and self._readable.get(path) == stamp:
            return True
        try:
            load_checkpoint(path)
        except BadCheckpointError:
            return False
        self._readable[path] = stamp
        return True


def _stamp(path: Path) -> Stamp:
    try:
        files = [(file.name, file.stat()) for file in sorted(path.iterdir())]
    except OSError:
        return ()
    return tuple((name, status.st_ino, status.st_size, status.st_mtime_ns) for name, status in files)
