"""The `engram` command: runs a verb, and turns a user's mistake into a message and an exit code."""

import os
import signal
import sys
from argparse import REMAINDER, SUPPRESS
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from shutil import get_terminal_size
from types import FrameType

from engram import __version__
from engram.cli.arguments import ArgumentParser
from engram.nearest import suggestion
from engram.settings import UserError
from engram.training.stop_signals import STOPS, Stopped, handle_signals

# Each verb is a module of this package with `main(argv) -> exit code`, imported only when it is called.
GROUPS = {
    "train": {
        "train": "train a policy",
        "sweep": "search settings with Optuna",
        "validate": "check settings and print them in full, without training",
        "check-env": "play an environment a little, and say what is wrong with it",
    },
    "look": {
        "runs": "list runs with their state and return",
        "watch": "show a run that trains in another process, or has ended",
        "report": "one page of charts about one or several runs",
        "diagnose": "say why a run does not learn",
        "replay": "record an episode and show what of its past the agent remembers",
        "memory": "measure what an agent remembers, and for how long",
    },
    "test": {
        "eval": "play whole episodes with a trained policy",
        "compare": "test policies on the same episodes",
        "audit": "check that a policy handles its memory correctly",
        "bench": "measure speed",
        "soak": "train while injecting faults, and check that runs resume unharmed",
    },
    "use": {"export": "write a policy as ONNX or a PyTorch program"},
}
VERBS = {verb: summary for group in GROUPS.values() for verb, summary in group.items()}
CPU_SAMPLE_SECONDS = 0.1
PANEL_WIDTH = 120  # at most, as that of the panel of a run
BUSY_CORES = 0.3  # in use by other programs


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit code: 2 for a user's mistake, 130 if interrupted, 143 if terminated."""
    received: list[type[Stopped]] = []
    try:
        with _signals_raise(received):
            code = _run([*(sys.argv[1:] if argv is None else argv)])
        sys.stdout.flush()  # inside the try: the reader may be gone
        return code
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as stop:
        print(stop if stop.args else "stopped", file=sys.stderr)
        return stop.exit_code if isinstance(stop, Stopped) else Stopped.exit_code
    except BrokenPipeError:  # the reader of the output has ended, as in `engram --help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception:
        if not received:
            raise
        print("stopped", file=sys.stderr)  # an interrupted import may raise a different error
        return received[0].exit_code


def _run(argv: Sequence[str]) -> int:
    parser = _parser()
    try:
        command = parser.parse_args(["--help"] if [*argv] in ([], ["help"]) else argv)
        if command.verb not in VERBS:
            raise UserError(f"engram: no verb '{command.verb}'{suggestion(command.verb, VERBS)} ({', '.join(VERBS)})")
        _import_from_current_folder()
        with _loading(command.verb, command.arguments):
            if command.verb != "bench":  # it measures how busy the machine is
                choose_wait_policy()
            module = import_module(f"engram.cli.{command.verb.replace('-', '_')}")
        return int(module.main(command.arguments))
    except SystemExit as end:  # argparse exits after --help and --version
        if end.code != 0:
            raise
        return 0


def _parser() -> ArgumentParser:
    verbs = [
        line
        for title, group in GROUPS.items()
        for line in (f"{title}:", *(f"  {verb:<10} {summary}" for verb, summary in group.items()), "")
    ]
    parser = ArgumentParser(
        prog="engram",
        usage="engram VERB …",
        description="Train reinforcement-learning agents with memory.",
        epilog="\n".join([*verbs, "`engram VERB --help` describes a verb."]),
    )
    parser.add_argument("--version", "-V", action="version", version=f"engram {__version__}")
    parser.add_argument("verb", help=SUPPRESS)
    parser.add_argument("arguments", nargs=REMAINDER, help=SUPPRESS)
    return parser


def choose_wait_policy() -> None:
    """Let torch's idle threads sleep instead of spin if other programs use the machine.

    Spinning makes learning with two threads a quarter faster on an idle machine, but three to six times slower
    beside another busy program. OpenMP reads the policy once, so this must run before torch is imported.
    """
    if "OMP_WAIT_POLICY" in os.environ or "GOMP_SPINCOUNT" in os.environ:
        return
    import psutil  # here: not before the frame is shown

    if psutil.cpu_percent(interval=CPU_SAMPLE_SECONDS) / 100 * (psutil.cpu_count() or 1) > BUSY_CORES:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


@contextmanager
def _loading(verb: str, argv: Sequence[str]) -> Iterator[None]:
    """Show in a terminal that the verb is being loaded, because imports take most of the first second.

    `train` already shows the frame of its panel, drawn without Rich, whose import would delay it.
    """
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        yield
        return
    lines = [f"engram {verb}: loading …"]
    if verb == "train" and (sys.stdout.encoding or "").lower().startswith("utf"):
        lines = _first_frame([word for word in argv if word.isascii() and word.isprintable()])
    print("\n".join(lines), end="", flush=True)
    try:
        yield
    finally:
        up = f"\x1b[{len(lines) - 1}A" if len(lines) > 1 else ""
        print(f"{up}\r\x1b[J", end="", flush=True)


def _first_frame(argv: Sequence[str]) -> list[str]:
    """The frame of the panel with the name of the run and its settings, as far as the command line has them."""
    inside = max(min(get_terminal_size().columns, PANEL_WIDTH) - 2, 20)
    run = [word.removeprefix("run=") for word in argv if word.startswith("run=")]
    title = _cut(" ".join(["engram", *run[-1:]]), inside - 3)
    text = _cut(" ".join(["loading", *(word for word in argv if not word.startswith("run=")), "…"]), inside - 2)
    return [
        f"╭─ {title} {'─' * (inside - 3 - len(title))}╮",
        f"│ {text:<{inside - 1}}│",
        f"╰{'─' * inside}╯",
        "",
    ]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _import_from_current_folder() -> None:
    """Let settings name modules in the current folder, however `engram` was called.

    Not in the directory of a run, which may be a stranger's: packages that libraries look for could be there.
    """
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        raise UserError("the current folder was removed: change to one that exists (cd)") from None
    parents = [Path(folder), *Path(folder).parents[:2]]  # a run has checkpoints/epoch_N in it
    in_a_run = any((parent / "settings.yaml").exists() for parent in parents)
    if folder not in sys.path and not in_a_run:
        sys.path.append(folder)  # last, so that a user's random.py does not replace the real one


@contextmanager
def _signals_raise(received: list[type[Stopped]]) -> Iterator[None]:
    """Within this context, stop signals raise, so that workers are closed too; `received` lists them."""

    def stop(number: int, _frame: FrameType | None) -> None:
        received.append(STOPS[signal.Signals(number)])
        for other in STOPS:
            if other != signal.SIGINT and signal.getsignal(other) is stop:
                signal.signal(other, signal.SIG_IGN)  # a second one must not disturb the shutdown
        raise received[-1]

    with handle_signals([*STOPS], stop):
        yield
