"""What can be asked of a group of environments, and the block that answers in this process."""

from collections.abc import Sequence
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


class Pool(Protocol):
    """Steps the environments of each group, here or in other processes. A group is held in shares, in order of ids."""

    def start(self, command: Command, group: int, arguments: Sequence[Any] | None = None) -> None:
        """Ask every share of a group for something; `arguments` has one for each share."""

    def finish(self, group: int) -> list[Any]:
        """Wait for what was asked of a group: the answer of each share. Groups finish in the order they started."""

    def close(self) -> None: ...


class LocalPool:
    """Every group is one block in this process, and does what was asked when the answer is waited for."""

    def __init__(self, environment: str, groups: Sequence[range], blocks: Sequence[Block]):
        self._environment, self._groups, self._blocks = environment, groups, blocks
        self._asked: dict[int, tuple[Command, Any]] = {}

    def start(self, command: Command, group: int, arguments: Sequence[Any] | None = None) -> None:
        self._asked[group] = (command, arguments[0] if arguments else None)

    def finish(self, group: int) -> list[Any]:
        command, argument = self._asked.pop(group)
        try:
            return [perform(self._blocks[group], command, argument)]
        except UserError:
            raise
        except Exception as error:
            ids, what = [self._groups[group]], describe_exception(error)
            raise EnvError(describe(self._environment, "failed", command.doing, ids, what)) from error

    def close(self) -> None:
        blocks, self._blocks = self._blocks, ()
        for block in blocks:
            block.close()


def perform(block: Block, command: Command, argument: Any) -> Any:
    """The answer to a command; None where there is nothing to tell, as after most steps."""
    if command == Command.STEP:
        episodes = block.step()
        return episodes if len(episodes) else None
    if command == Command.STATE:
        return block.state()
    if command == Command.RESTORE:
        return block.restore(argument)
    block.reset()
    return None
