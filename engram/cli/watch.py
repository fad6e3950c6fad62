"""`engram watch RUN [runs_dir=runs] [--once]`: show the panel of a run that trains in another process, or has ended."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from engram.cli.arguments import ArgumentParser
from engram.cli.run_arguments import named_runs
from engram.config.load import describe_run
from engram.config.run_directory import is_locked
from engram.display.watching import RunFollower, make_watcher
from engram.settings import UserError

DESCRIPTION = """Shows the panel of a run that trains in another process, such as in another terminal, or of one that
has ended. It only reads, and follows the run when it is stopped and resumed. Ctrl-C leaves the watcher; the run goes
on."""

SECONDS = 0.5  # between two reads of the metrics
LOCK_SECONDS = 2.0  # between two checks of the lock


def main(argv: Sequence[str]) -> int:
    usage = "engram watch RUN [runs_dir=runs] [--once]"
    parser = ArgumentParser(prog="engram watch", usage=usage, description=DESCRIPTION)
    parser.add_argument("--once", action="store_true", help="show the run as it is now, and end")
    options, arguments = parser.parse_settings(argv)
    directories = named_runs("watch", arguments)
    if len(directories) > 1:
        raise UserError(f"watch: {len(directories)} runs are named: watch one at a time (engram runs lists them)")
    try:
        watch(directories[0], options.once)
    except KeyboardInterrupt:
        print("left the run as it is")
    return 0


def watch(directory: Path, once: bool) -> None:
    """Follow until the run has ended; in a terminal, a run that was stopped may still be resumed."""
    describe_run(directory)  # raises if this is not a readable run
    follower = RunFollower(directory)
    running, checked = is_locked(directory), time.monotonic()
    with make_watcher(sys.stdout) as watcher:
        while True:
            follower.read(running)
            watcher.show(follower)
            if follower.complete or once or not (running or watcher.waits_for_resume):
                return
            time.sleep(SECONDS)
            if time.monotonic() - checked >= LOCK_SECONDS:
                running, checked = is_locked(directory), time.monotonic()
