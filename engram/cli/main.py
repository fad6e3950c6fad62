"""The `engram` command: finds the verb, runs it, and turns a user's mistake into a message and an exit code."""

import ast
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import current_thread, main_thread
from typing import NoReturn

from engram import __version__
from engram.cli.sharing import share_the_machine
from engram.nearest import suggestion
from engram.settings import UserError

# name -> module with `main(words) -> exit code`; its first line says what the verb does. Loaded only when called.
VERBS = {
    "train": "engram.cli.train",
    "eval": "engram.cli.eval",
    "audit": "engram.cli.audit",
    "bench": "engram.cli.bench",
    "validate": "engram.cli.validate",
}


class Terminated(KeyboardInterrupt):
    """Somebody asked this process to end, with SIGTERM: it ends as at Ctrl-C, workers and all."""


def main(words: Sequence[str] | None = None) -> int:
    """Runs the verb that the command line names and returns the exit code: 2 for a mistake, 130 when interrupted,
    143 when terminated."""
    try:
        with _terminated_like_interrupted():
            code = _run([*(sys.argv[1:] if words is None else words)] or ["--help"])
        sys.stdout.flush()  # here, where it can be answered that nobody reads it
        return code
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as stop:
        print(stop if stop.args else "stopped", file=sys.stderr)
        return 143 if isinstance(stop, Terminated) else 130
    except BrokenPipeError:  # whoever read our output has gone, as in `engram --help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(words: Sequence[str]) -> int:
    verb, *rest = words
    if verb in ("--help", "-h", "help"):
        print(_help())
    elif verb in ("--version", "-V"):
        print(f"engram {__version__}")
    elif verb in VERBS:
        if verb != "bench":  # which measures for itself how busy the machine is
            share_the_machine()
        _find_modules_here()
        return int(import_module(VERBS[verb]).main(rest))
    else:
        raise UserError(f"engram: no verb '{verb}'{suggestion(verb, VERBS)} ({', '.join(VERBS)})")
    return 0


def _find_modules_here() -> None:
    """Let settings name modules in the current folder, however `engram` was called."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # last: a random.py or gymnasium.py of the user's must not replace the real one


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    def stop(*_: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: what is under way is being tidied up
        raise Terminated

    if current_thread() is not main_thread():  # where signals cannot be handled
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _help() -> str:
    lines = ["engram: train reinforcement-learning agents with memory", "", "Usage: engram VERB …", "", "Verbs:"]
    lines += [f"  {verb:<10} {_summary(module)}" for verb, module in VERBS.items()]
    return "\n".join([*lines, "", "`engram VERB --help` tells more about one of them."])


def _summary(module: str) -> str:
    """The first line of a module, read and not imported: most verbs load torch, and this is only a list."""
    origin = getattr(find_spec(module), "origin", None)
    text = ast.get_docstring(ast.parse(Path(origin).read_text(encoding="utf-8"))) if origin else None
    return (text or "").partition("\n")[0]
