"""What can be asked of a group of environments, and the pool that answers in this process."""

import contextlib
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Protocol

from engram.env.block import Block
from engram.env.errors import EnvError, describe, describe_exception
from engram.settings import UserError


class Command(IntEnum):
    BUILD = 0
    RESET = 1
    STEP = 2
    STATE = 3
    RESTORE = 4

    @property
    def doing(self) -> str:
        return ("building", "resetting", "stepping", "saving", "restoring")[self]


Done = tuple[int, list[Any]]  # a group and the answer of each of its shares


class Pool(Protocol):
    """Steps the environments of each group, here or in other processes. A group is held in shares, in order of ids.

    It closes itself when an environment fails.
    """

    closed: bool

    def start(self, command: Command, group: int, arguments: Sequence[Any] | None = None) -> None:
        """Ask every share of a group for something; `arguments` has one for each share."""

    def finish(self, group: int | None = None) -> Done:
        """Wait for what was asked of this group, or of the one that is done first."""

    def close(self) -> None: ...


class LocalPool:
    """Every group is one block in this process, and does what was asked when the answer is waited for."""

    def __init__(self, environment: str, groups: Sequence[range], build: Callable[[range], Block]):
        self._environment, self._groups = environment, groups
        self._asked: dict[int, tuple[Command, Any]] = {}
        self._blocks: list[Block] = []
        self.closed = False
        for group, ids in enumerate(groups):
            self._blocks.append(self._guarded(Command.BUILD, group, build, ids))

    def start(self, command: Command, group: int, arguments: Sequence[Any] | None = None) -> None:
        self._asked[group] = (command, arguments[0] if arguments else None)

    def finish(self, group: int | None = None) -> Done:
        if group is None:
            group = next(iter(self._asked))
        command, argument = self._asked.pop(group)
        return group, [self._guarded(command, group, perform, self._blocks[group], command, argument)]

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            for block in self._blocks:
                block.close()

    def _guarded(self, command: Command, group: int, work: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return work(*arguments)
        except UserError:
            self.close()
            raise
        except Exception as error:
            text = describe(
                self._environment, "failed", command.doing, [self._groups[group]], describe_exception(error)
            )
            with contextlib.suppress(Exception):  # a broken environment may not even close
                self.close()
            raise EnvError(text) from error


def perform(block: Block, command: int, argument: Any) -> Any:
    """The answer to a command; None where there is nothing to tell, as after most steps."""
    if command == Command.STEP:
        return block.step()
    if command == Command.STATE:
        return block.state()
    if command == Command.RESTORE:
        return block.restore(argument)
    block.reset()
    return None
