"""Watching a run from outside: follows its files, and draws the panel that training would draw."""

import os
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from rich import box
from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from engram.display.panel import WIDEST, run_panel
from engram.display.plain import epoch_line
from engram.display.progress import RunProgress
from engram.display.terminal import can_draw
from engram.settings import UserError
from engram.stored.files import UnreadableError
from engram.stored.metrics import MetricsReader, is_number
from engram.stored.plan import StoredPlan, read_plan

BOUNDED, LARGEST = ("steps", "epoch", "time/"), 1e15


class RunFollower:
    """Reads a run's files into a progress to draw. Starts over when a resumed run drops records."""

    def __init__(self, directory: Path) -> None:
        self.name, self._directory = directory.name, directory
        self._reader = MetricsReader(directory)
        self.plan: StoredPlan | None = None
        self.progress: RunProgress | None = None

    def read(self, running: bool) -> None:
        """Read what is new. `running`: whether a process trains the run."""
        plan = read_plan(self._directory)
        try:
            if self._reader.rewound() or (plan is not None and plan != self.plan):
                self.plan, self.progress, self._reader = plan, None, MetricsReader(self._directory)
            if self.plan is None:
                return
            self.progress = self.progress or RunProgress(self.plan)  # type: ignore[arg-type]  # it has the same names
            checkpoint = last_checkpoint(self._directory)
            for record in self._reader.new_records():
                figures = {name: value for name, value in record.items() if _can_be_shown(name, value)}
                if "steps" in figures:
                    self.progress.add({**figures, "checkpoint": checkpoint})
        except UnreadableError as error:
            raise UserError(f"watch: {error}") from None
        self.progress.ending = None if running else "done" if self.complete else "stopped"

    @property
    def complete(self) -> bool:
        return self.progress is not None and self.progress.fraction_done == 1.0


def _can_be_shown(name: str, value: Any) -> bool:
    """A metric may be NaN or infinite; counts and times may not, and are bounded."""
    return is_number(value) and (not name.startswith(BOUNDED) or abs(value) < LARGEST)


def last_checkpoint(directory: Path) -> int:
    """The epoch of the last checkpoint; 0 if there is none."""
    names = [path.name.removeprefix("epoch_") for path in (directory / "checkpoints").glob("epoch_*")]
    return max((int(name) for name in names if name.isascii() and name.isdigit()), default=0)


class TerminalWatcher:
    """Redraws the panel in place. Waits for runs that were stopped."""

    waits_for_resume = True

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> "TerminalWatcher":
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, follower: RunFollower) -> None:
        self._live.update(self._panel(follower), refresh=True)

    def _panel(self, follower: RunFollower) -> RenderableType:
        width, height = self._console.size
        if follower.progress is None:
            text = Text("no epoch has begun yet: the run is being built, or was stopped before its first one", "dim")
            return Panel(text, title=f"engram {follower.name}", box=box.ROUNDED, width=min(width, WIDEST))
        return run_panel(follower.progress, width, height)


class PlainWatcher:
    """Prints a line for the latest epoch, and ends when the run is not running."""

    waits_for_resume = False

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._shown = stream, -1

    def __enter__(self) -> "PlainWatcher":
        return self

    def __exit__(self, *error: object) -> None: ...

    def show(self, follower: RunFollower) -> None:
        progress = follower.progress
        if progress is None or not progress.record or progress.epoch == self._shown:
            return
        self._shown = progress.epoch
        print(epoch_line(progress), progress.ending or "running", file=self._stream, flush=True)


def make_watcher(stream: TextIO) -> TerminalWatcher | PlainWatcher:
    if can_draw(stream, os.environ):
        return TerminalWatcher(Console(file=stream, force_terminal=True, force_interactive=True))
    return PlainWatcher(stream)
