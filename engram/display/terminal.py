"""The display of a run: a live panel in a terminal, the same panel in a notebook, plain lines elsewhere."""

import os
import sys
from collections.abc import Mapping
from threading import RLock
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.control import Control
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from engram.display.notebook import NotebookDisplay, in_notebook
from engram.display.panel import WIDEST, run_panel
from engram.display.plain import PlainDisplay
from engram.display.progress import Ending, Record, RunProgress
from engram.display.summary import NextSteps, explain_last_batch, no_next_steps, offer, summary

if TYPE_CHECKING:
    from engram.training.run import RunPlan, RunResult

REFRESHES_PER_SECOND = 2  # faster changes cannot be read


def make_display(
    stream: TextIO, next_steps: NextSteps = no_next_steps, environ: Mapping[str, str] = os.environ
) -> "LiveDisplay | NotebookDisplay | PlainDisplay":
    """The display for a stream. Use it in a `with`, which restores the terminal.

    `next_steps` makes the commands that `finish` offers.
    """
    if stream is sys.stdout and in_notebook():
        from IPython.display import display

        return NotebookDisplay(display, next_steps)
    if can_draw(stream, environ):
        return LiveDisplay(Console(file=stream, force_terminal=True, force_interactive=True), next_steps)
    return PlainDisplay(stream, next_steps)


def can_draw(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether the stream is a terminal that can draw a panel."""
    unicode = (stream.encoding or "").lower().replace("-", "").startswith("utf")
    return stream.isatty() and unicode and environ.get("TERM", "") not in ("dumb", "unknown") and not environ.get("CI")


class LiveDisplay:
    """A panel that is redrawn in place, with messages above it. The last panel stays on the screen."""

    def __init__(self, console: Console, next_steps: NextSteps = no_next_steps) -> None:
        self._console = console
        self._next_steps = next_steps
        self._lock = RLock()  # Rich draws the panel in another thread
        self._progress: RunProgress | None = None
        self._live: Live | None = None
        self._building: Live | None = None
        self._drawn_width = 0

    def __enter__(self) -> "LiveDisplay":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the last panel on the screen and restore the cursor, however the run ended."""
        self._stop_building()
        self._stop("stopped")

    def building(self, run: str, what: str) -> None:
        """Show at once what is being built, until `start`."""
        text = Text(f"building {what} …", "dim")
        panel = Panel(text, title=Text(f"engram {run}"), title_align="left", box=box.ROUNDED, border_style="dim")
        self._building = Live(panel, console=self._console, refresh_per_second=REFRESHES_PER_SECOND, transient=True)
        self._building.start(refresh=True)

    def start(self, plan: "RunPlan") -> None:
        self._stop_building()
        self._progress = RunProgress(plan)
        if explanation := explain_last_batch(plan):
            self._console.print(Text(explanation, "dim"))
        self._live = Live(console=self._console, get_renderable=self._draw, refresh_per_second=REFRESHES_PER_SECOND)
        self._live.start(refresh=True)

    def update(self, record: Record) -> None:
        assert self._progress is not None, "start() comes first"
        with self._lock:
            self._progress.add(record)

    def message(self, text: str) -> None:
        self._console.print(Text(text, "yellow"))

    def finish(self, result: "RunResult") -> None:
        trained = self._progress is not None and bool(self._progress.record)
        self._stop("done")
        for line in summary(result, trained):
            self._console.print(Text(line))
        for line in offer(self._next_steps(result.steps)):
            self._console.print(Text(line), soft_wrap=True)  # unbroken lines can be copied

    def _stop_building(self) -> None:
        if self._building is not None:
            self._building.stop()
            self._building = None

    def _stop(self, ending: Ending) -> None:
        if self._progress is None or self._live is None:
            return
        with self._lock:
            self._progress.end(ending)
        self._live.stop()

    def _draw(self) -> RenderableType:
        assert self._progress is not None
        width, height = self._console.size
        if width < self._drawn_width:
            # The terminal has wrapped the lines of the old panel, so moving up by their number would not clear it.
            self._console.control(Control.clear(), Control.home())
        self._drawn_width = min(width, WIDEST)
        with self._lock:
            panel = run_panel(self._progress, width, height)
        return Group(panel, Text())  # the cursor is below the panel, where a typed ^C does no harm
