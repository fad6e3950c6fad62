"""Lets a process kill itself in the middle of a named function: at a random line of Python, with signal 9."""

import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

# Phase of a run -> functions, and how many lines of Python to go into one of them at most.
PHASES: dict[str, tuple[list[str], int]] = {
    "start-up": (
        ["support.running:prepare_directory", "engram.training.run:make_agent", "engram.training.run:resume"],
        1500,
    ),
    "evaluation": (["engram.training.environment:evaluate"], 4000),
    "retention": (["engram.training.checkpoint.checkpoints:delete", "engram.training.checkpoint.files:delete"], 120),
    "end": (["engram.training.run:RunResult", "support.running:Silent.finish"], 60),
}


class Moment(NamedTuple):
    function: str
    call: int  # in its first, second, … call
    line: int  # after so many lines of Python, or at the call's end


def die_at(moment: Moment) -> None:
    """Replace a function of this process by one that does not survive."""
    path, _, name = moment.function.partition(":")
    owner: Any = import_module(path)
    *outer, attribute = name.split(".")
    for each in outer:
        owner = getattr(owner, each)
    setattr(owner, attribute, _dying(getattr(owner, attribute), moment))


def _dying(function: Callable[..., Any], moment: Moment) -> Callable[..., Any]:
    calls = lines = 0

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def count(frame: object, event: str, argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        if lines >= moment.line:
            die()
        return count

    def replacement(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < moment.call:
            return function(*arguments, **options)
        sys.settrace(count)
        function(*arguments, **options)
        die()

    return replacement
