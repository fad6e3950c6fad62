"""The log of a run: a file with everything, and warnings for the display."""

import logging
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from engram.training.storage import LineFile

log = logging.getLogger("engram")


def log_to(path: Path | None, show: Callable[[str], None]) -> None:
    """Log to this file and show warnings. None: log nothing, because another rank logs the same."""
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
        self._show(record.getMessage())
