"""Detects an environment of this process that hangs, and reports where. No other thread can interrupt it."""

import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TICK_SECONDS = 0.25
_DEBUGGERS = ("pdb", "bdb", "ipdb", "pydevd", "debugpy")


@dataclass(eq=False)
class Call:
    """A call of environments that is under way, in the thread that made it."""

    describe: Callable[[str], str]  # the whole message, from what happened
    steps: bool  # whether environments step; anything else may take longer
    thread: int


class HangWatch:
    """A thread that reports calls which take too long. It counts ticks, because a pause (Ctrl-Z) is not a hang.

    Environments that hang in C code without releasing Python's lock stop this thread too; only workers notice those.
    """

    def __init__(self, step_timeout: float, start_timeout: float, report: Callable[[str], None]) -> None:
        self._step_timeout, self._start_timeout, self._report = step_timeout, start_timeout, report
        self.call: Call | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="engram-hang-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _watch(self) -> None:
        seen, ticks = None, 0
        while not self._closed.wait(TICK_SECONDS):
            call = self.call
            ticks = ticks + 1 if call is not None and call is seen else 0
            seen = call
            if call is None:
                continue
            timeout = self._step_timeout if call.steps else self._start_timeout
            if ticks * TICK_SECONDS >= timeout and not _is_debugged(call.thread):
                self._report(_message(call, timeout))
                ticks = 0


def _message(call: Call, timeout: float) -> str:
    advice = " If the environment is only slow, raise trainer.worker_timeout." if call.steps else ""
    return call.describe(f"no result for {timeout:g} s.{advice} It is at\n{_location(call.thread)}")


def _frames(thread: int) -> list[traceback.FrameSummary]:
    frame = sys._current_frames().get(thread)
    return [] if frame is None else list(traceback.extract_stack(frame))


def _location(thread: int) -> str:
    innermost = _frames(thread)[-4:]
    return "\n".join(f"  {frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in innermost)


def _is_debugged(thread: int) -> bool:
    """Whether a debugger holds this thread."""
    files = [Path(frame.filename) for frame in _frames(thread)]
    return any(name in (file.stem, file.parent.name) for file in files for name in _DEBUGGERS)
