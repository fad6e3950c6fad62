"""Train a policy: `engram train [GROUP=CHOICE …] [SETTING=VALUE …]`."""

import errno
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from engram.cli.guide import guide
from engram.cli.together import together
from engram.config.load import load
from engram.config.run import RunSettings
from engram.config.stored import keep, unwritable
from engram.env.registry import make_spec
from engram.settings import UserError
from engram.training.checkpoint.listing import list_checkpoints
from engram.training.launch import Place, place

if TYPE_CHECKING:
    from engram.training.distributed import World

FULL_OR_READ_ONLY = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)

STOPPED = "stopped; the same command goes on from the last checkpoint, if there is one"  # not in the midst of training


def main(words: Sequence[str]) -> int:
    if {"--help", "-h"} & {*words}:
        print(guide("train"))
        return 0
    with ExitStack() as held:  # the run's lock, until all is done
        return _run(words, held)


def _run(words: Sequence[str], held: ExitStack) -> int:
    here = place()
    try:
        settings = load(words)
        make_spec(settings.env)  # if there is no such environment, no run is begun
        directory = keep(settings, held) if here.rank == 0 else settings.directory
    except UserError as error:
        if here.local_rank == 0:  # the others of this machine have found the same
            raise
        return error.exit_code
    if here.size > 1:
        return together(here, settings, lambda world: _train(words, settings, directory, world))
    _train(words, settings, directory)
    return 0


def _train(words: Sequence[str], settings: RunSettings, directory: Path, *world: "World") -> None:
    try:
        # Loaded here and not above: torch takes seconds, and a mistyped option should be answered at once.
        start = import_module("engram.training.run").start
        make_display = import_module("engram.display.terminal").make_display
        audit = None if settings.trainer.audit is None else import_module("engram.audit").stop_if_wrong
        watched = all(each.main for each in world)
        continued = bool(list_checkpoints(directory / "checkpoints"))
        with (
            nullcontext(sys.stdout) if watched else open(os.devnull, "w", encoding="utf-8") as stream,
            make_display(stream, next_steps=partial(next_steps, words, settings, continued)) as display,
        ):
            start(settings, display, *world, audit=audit)
    except KeyboardInterrupt as stop:
        raise type(stop)(*(stop.args or [STOPPED])) from None
    except OSError as error:
        if not _concerns(error, directory):
            raise
        raise UserError(unwritable(directory, error)) from error


def next_steps(words: Sequence[str], settings: RunSettings, continued: bool, done: int) -> list[str]:
    """Commands one may want after the run: evaluate it, train it for longer, or see what it reaches without memory.

    A run that was continued need not have all its settings among the words, so another cannot be made from them.
    """
    steps = 2 * max(settings.trainer.total_timesteps, done)  # more may be done than was asked: the last batch is whole
    longer: dict[str, object] = {"run": settings.run, "trainer.total_timesteps": steps}
    without: dict[str, object] = {"run": f"{settings.run[:90]}_no_memory", "trainer.memory": "off"}
    changes = [longer] if settings.trainer.memory == "off" or continued else [longer, without]
    return [_evaluation(settings), *(_command(words, change) for change in changes)]


def _evaluation(settings: RunSettings) -> str:
    where = "" if settings.runs_dir == "runs" else f" runs_dir={shlex.quote(settings.runs_dir)}"
    return f"{_program()} eval run={settings.run}{where}"


def _program() -> str:
    """How to call `engram` here, where it may be in a virtual environment that is not activated."""
    if shutil.which("engram"):
        return "engram"
    path = os.path.relpath(Path(sys.executable).with_name("engram"))
    return shlex.quote(str(Path(path).resolve()) if path.startswith("..") else path)


def _command(words: Sequence[str], changes: dict[str, object]) -> str:
    here, script = place(), sys.argv[0] if sys.argv[0].endswith("train.py") else None
    program = script or f"{_program()} train"
    if here.size > 1:
        program = f"torchrun {_launching(here)} {script or '-m engram train'}"
    same = [shlex.quote(word) for word in words if word.partition("=")[0] not in changes]
    return " ".join([program, *same, *(f"{name}={value}" for name, value in changes.items())])


def _launching(here: Place) -> str:
    """How torchrun was told to start these processes; on several machines only the user knows."""
    return f"--nproc-per-node={here.size}" if here.local_size == here.size else "…"


def _concerns(error: OSError, directory: Path) -> bool:
    """Whether the run's directory is at fault: full, read-only, or gone."""
    if error.errno in FULL_OR_READ_ONLY:
        return True
    return isinstance(error.filename, str) and Path(error.filename).resolve().is_relative_to(directory.resolve())
