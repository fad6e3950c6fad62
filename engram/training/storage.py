"""Storage: writes a run's files and its log, and survives full disks and read-only or removed directories."""

import logging
import os
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from engram.settings import UserError, shown

WARN_INTERVAL = 60.0  # seconds between two warnings about the same outage

log = logging.getLogger("engram")


class DiskError(UserError):
    """Nothing could be written for too long; the last checkpoint is kept."""

    exit_code = 1


class Storage:
    """Tries to write. A failure is a warning at first; if it lasts longer than `timeout` seconds, training stops.

    `restore` recreates the run's directory if it was removed. `give_up` returns whether a run that was asked to stop
    has waited long enough: then a write that fails is not tried again.
    """

    def __init__(
        self,
        directory: Path,
        timeout: float,
        restore: Callable[[], None] | None = None,
        give_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self.directory, self.timeout, self._give_up = directory, timeout, give_up
        self._restore = restore or (lambda: directory.mkdir(parents=True, exist_ok=True))
        self._folder = _current_folder()
        self._failing: dict[str, float] = {}  # what cannot be written -> since when
        self._warned = -WARN_INTERVAL
        self._kept: dict[Path, Callable[[], object]] = {}
        self._unwritten: set[Path] = set()

    def keep(self, path: Path, write: Callable[[], object]) -> None:
        """Write a file now, or as soon as possible, and again whenever it is missing."""
        self._kept[path] = write
        self._unwritten.add(path)
        self.attempt(path.name, partial(self._write_kept, path))

    def _write_kept(self, path: Path) -> None:
        if path in self._unwritten or not path.exists():
            self._kept[path]()
            self._unwritten.discard(path)

    def attempt(self, what: str, write: Callable[[], object]) -> bool:
        """Whether `write` succeeded. Raises `DiskError` if it has failed for too long."""
        try:
            self._return_to_folder()
            self._restore()
            for path in self._kept:
                with suppress(OSError):
                    self._write_kept(path)
            write()
        except OSError as error:
            self._failed(what, error)
            return False
        if self._failing.pop(what, None) is not None:
            log.warning("%s: %s can be written again", self.directory, what)
        return True

    def _return_to_folder(self) -> None:
        """Undo an environment's `os.chdir`, after which a relative path would mean a different directory."""
        current = _current_folder()
        if self.directory.is_absolute() or self._folder in (None, current):
            return
        if current is not None:
            log.warning(
                "the environment changed the working directory to %s; it is %s again, so that %s stays the same "
                "directory. An absolute runs_dir= lets the environment keep it",
                current,
                self._folder,
                self.directory,
            )
        os.chdir(str(self._folder))

    def _failed(self, what: str, error: OSError) -> None:
        now = time.monotonic()
        since = self._failing.setdefault(what, now)
        reason = error.strerror or str(error)
        if self._give_up():
            log.warning("%s: %s could not be written before the stop (%s)", self.directory, what, reason)
            raise KeyboardInterrupt
        if now - since > self.timeout:
            raise DiskError(
                f"{self.directory}: {what} could not be written for {now - since:.0f} s ({reason}; "
                "trainer.disk_timeout). Make it writable or free disk space; the same command then resumes from the "
                "last checkpoint, if there is one"
            ) from error
        if now - self._warned >= WARN_INTERVAL:
            self._warned = now
            log.warning(
                "%s: %s cannot be written (%s). Training continues, tries again, and stops after %g s "
                "(trainer.disk_timeout)",
                self.directory,
                what,
                reason,
                self.timeout,
            )


class LineFile:
    """Appends whole lines to a file. Lines that cannot be written now are written with the next one, or at the end.

    If the file is removed, it is recreated with all of its lines, which the open file still has.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._file: BinaryIO = path.open("ab+", buffering=0)
        self._end = self._file.seek(0, os.SEEK_END)
        self._unwritten = b""

    def write(self, line: str) -> None:
        """Raises OSError if the line cannot be written now."""
        self._unwritten += line.encode() + b"\n"
        self._write_unwritten()

    def close(self) -> None:
        """Raises OSError if lines cannot be written even now."""
        try:
            if self._unwritten:
                self._write_unwritten()
        finally:
            self._file.close()

    def _write_unwritten(self) -> None:
        if not self._is_at_path():
            self._recreate()
        try:
            _write_all(self._file, self._unwritten)
        except OSError:
            with suppress(OSError):
                self._file.truncate(self._end)  # no half line
            raise
        self._end += len(self._unwritten)
        self._unwritten = b""

    def _is_at_path(self) -> bool:
        """Whether the path still names the open file."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return False

    def _recreate(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.open("ab+", buffering=0)
        try:
            if new.seek(0, os.SEEK_END) == 0:
                self._file.seek(0)
                _write_all(new, self._file.read(self._end))
            self._end = new.seek(0, os.SEEK_END)
        except OSError:
            new.close()
            self.path.unlink(missing_ok=True)
            raise
        self._file.close()
        self._file = new


def _current_folder() -> Path | None:
    """None if it was removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def _write_all(file: BinaryIO, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def log_to(path: Path | None, show: Callable[[str], None]) -> None:
    """Log everything to this file and show warnings. None: log nothing, because another rank logs the same."""
    stop_logging()
    if path is None:
        log.addHandler(logging.NullHandler())
    else:
        to_file = _ToFile(path)
        to_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(to_file)
        log.addHandler(_ShowWarnings(show))
    log.setLevel(logging.INFO)
    log.propagate = False
    warnings.showwarning = lambda message, *_args, **_kwargs: log.warning("%s", message)


def stop_logging() -> None:
    """Close the file of a run that has ended."""
    for handler in list(log.handlers):
        log.removeHandler(handler)
        handler.close()


class _ToFile(logging.Handler):
    """Messages that cannot be written now are written together with the next one."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._lines = LineFile(path)

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            self._lines.write(self.format(record))

    def close(self) -> None:
        with suppress(OSError):
            self._lines.close()
        super().close()


class _ShowWarnings(logging.Handler):
    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        self._show(shown(record.getMessage()))
