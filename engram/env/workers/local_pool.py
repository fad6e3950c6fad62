"""Environments that step in this process."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from engram.env.block import Block
from engram.env.errors import EnvError, NotFiniteError, describe, describe_exception, is_wrong_step
from engram.env.workers.hang_watch import Call, HangWatch
from engram.env.workers.restarts import INTERRUPTED, Restarts
from engram.env.workers.transport import Command
from engram.env.workers.worker import perform
from engram.settings import UserError


class LocalPool:
    """Every batch is one block in this process. It runs a command when `finish` asks for the result."""

    def __init__(
        self,
        environment: str,
        batches: Sequence[range],
        build: Callable[[range], Block],
        restarts: Restarts | None = None,
        watch: HangWatch | None = None,
    ) -> None:
        self._environment, self._batches, self._build = environment, batches, build
        self._restarts, self._watch = restarts or Restarts(), watch
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
