"""Environments that step in this process, and a watch that reports where one of them hangs."""

import contextlib
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from engram.env.block import Block
from engram.env.errors import EnvError, NotFiniteError, describe, describe_exception, is_wrong_step
from engram.env.workers.restarts import INTERRUPTED, Restarts
from engram.env.workers.transport import Command
from engram.env.workers.worker import perform
from engram.settings import UserError

TICK_SECONDS = 0.25
_DEBUGGERS = ("pdb", "bdb", "ipdb", "pydevd", "debugpy")


@dataclass(eq=False)
class Call:
    """A call of environments that is under way, in the thread that made it."""

    describe: Callable[[str], str]  # makes the whole message from a text about what happened
    steps: bool  # whether environments step; anything else may take longer
    thread: int


class HangWatch:
    """A thread that reports calls which take too long. It counts ticks, because a pause (Ctrl-Z) is not a hang.

    Environments that hang in C code without releasing the GIL stop this thread too; only workers notice those.
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


class LocalPool:
    """Every batch is one block in this process. It runs a command when `finish` asks for the result."""

    def __init__(
        self,
        environment: str,
        batches: Sequence[range],
        build: Callable[[range], Block],
        restarts: Restarts,
        watch: HangWatch | None,
    ) -> None:
        self._environment, self._batches, self._build = environment, batches, build
        self._restarts, self._watch = restarts, watch
        self._commands: dict[int, tuple[Command, Any]] = {}
        self._blocks: list[Block] = []
        self.steps = [0] * len(batches)
        self.closed = False
        try:
            for batch, ids in enumerate(batches):
                self._blocks.append(self._run(Command.BUILD, batch, build, ids))
        except BaseException:
            self.close()
            raise

    def start(self, command: Command, batch: int, arguments: Sequence[Any] | None = None) -> None:
        if command == Command.STEP:
            self.steps[batch] += 1
        self._commands[batch] = (command, arguments[0] if arguments else None)

    def finish(self, batch: int) -> list[Any]:
        command, argument = self._commands.pop(batch)
        try:
            try:
                return [self._run(command, batch, perform, self._blocks[batch], command, argument)]
            except EnvError as error:
                if command not in (Command.STEP, Command.RESET) or is_wrong_step(error.__cause__):
                    raise
                self._restart(batch, error)
                return [INTERRUPTED if command == Command.STEP else None]
        except EnvError:
            self.close()
            raise
        except UserError as error:
            self.close()
            raise EnvError(str(error)) from error

    def begin_restarted(self) -> list[tuple[int, int]]:
        return []  # they begin at once

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if self._watch is not None:
                self._watch.close()
            for block in self._blocks:
                with contextlib.suppress(Exception):  # a broken environment may not even close
                    block.close()

    def _restart(self, batch: int, failure: EnvError) -> None:
        """Builds the environments of a batch again and begins new episodes, as often as that is allowed."""
        while True:
            self._restarts.allow(failure)
            with contextlib.suppress(Exception):
                self._blocks[batch].close()
            try:
                self._blocks[batch] = self._run(Command.BUILD, batch, self._build, self._batches[batch])
                self._run(Command.RESET, batch, perform, self._blocks[batch], Command.RESET, self.steps[batch])
                return
            except EnvError as again:
                failure = again

    def _run(self, command: Command, batch: int, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._watch is not None:
            describe_hang = partial(self._describe_hang, command, batch)
            self._watch.call = Call(describe_hang, command == Command.STEP, threading.get_ident())
        try:
            return function(*arguments)
        except NotFiniteError as error:
            if not self._restarts.bad_numbers:
                raise
            raise EnvError(self._describe("failed", command, batch, str(error))) from error
        except (UserError, KeyboardInterrupt):
            raise
        except BaseException as error:  # an environment may call sys.exit
            raise EnvError(self._describe("failed", command, batch, describe_exception(error))) from error
        finally:
            if self._watch is not None:
                self._watch.call = None

    def _describe(self, outcome: str, command: Command, batch: int, what: str) -> str:
        return describe(self._environment, outcome, command.verb, [self._batches[batch]], what)

    def _describe_hang(self, command: Command, batch: int, what: str) -> str:
        where = self._blocks[batch].where() if command == Command.STEP else None
        return self._describe("hangs", command, batch, what if where is None else f"{where}: {what}")


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
