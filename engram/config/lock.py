"""The lock of a run's directory: one process trains in it at a time. The system releases it, however a process ends."""

import os
from pathlib import Path
from typing import TextIO
from weakref import WeakSet

from engram.settings import UserError

try:
    import fcntl
except ImportError:  # a system without it does without the lock
    fcntl = None  # type: ignore[assignment]

LOCK_FILE = ".lock"

_held: WeakSet[TextIO] = WeakSet()


def lock(directory: Path) -> TextIO:
    """The open file that holds the lock until it is closed; raises when another process trains in the directory."""
    file = (directory / LOCK_FILE).open("a+", encoding="utf-8")
    try:
        _take(file, directory)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
    except BaseException:
        file.close()
        raise
    _held.add(file)
    return file


def _take(file: TextIO, directory: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        process = f"process {number}" if (number := file.read().strip()) else "another process"
        raise UserError(
            f"{directory} is being trained by {process}: wait for it, stop it, or give another run="
        ) from None
    except OSError:
        pass  # a file system that has no locks


def _leave_it_to_the_parent() -> None:
    """In a forked process, which would otherwise hold the lock when the one that trains is gone."""
    for file in list(_held):
        file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_it_to_the_parent)
