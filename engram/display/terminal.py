"""The display of a run: a live panel in a terminal, plain lines everywhere else."""

import os
import sys
from collections.abc import Mapping
from threading import RLock
from types import TracebackType
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.control import Control
from rich.live import Live
from rich.text import Text

from engram.display.panel import WIDEST, run_panel
from engram.display.plain import PlainDisplay
from engram.display.story import Ending, Plan, Record, Result, Story
from engram.display.summary import NextSteps, nothing, offer, summary

REFRESHES_PER_SECOND = 2  # figures that change faster cannot be read


def make_display(
    stream: TextIO | None = None, next_steps: NextSteps = nothing, environ: Mapping[str, str] = os.environ
) -> "LiveDisplay | PlainDisplay":
    """The display that suits the stream (by default standard output). Use it in a `with`, which tidies up.

    `next_steps` makes the commands that `finish` offers.
    """
    stream = stream or sys.stdout
    if is_lively(stream, environ):
        return LiveDisplay(Console(file=stream, force_terminal=True, force_interactive=True), next_steps)
    return PlainDisplay(stream, next_steps)


def is_lively(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether a panel can be drawn and someone is there to see it."""
    unicode = (stream.encoding or "").lower().replace("-", "").startswith("utf")
    return stream.isatty() and unicode and environ.get("TERM", "") not in ("dumb", "unknown") and not environ.get("CI")


class LiveDisplay:
    """A panel that is drawn anew where it stands, with messages above it; the last one stays on the screen."""

    def __init__(self, console: Console, next_steps: NextSteps = nothing) -> None:
        self._console = console
        self._next_steps = next_steps
        self._lock = RLock()  # the panel is drawn by a thread of its own
        self._story: Story | None = None
        self._live: Live | None = None
        self._drawn_width = 0

    def __enter__(self) -> "LiveDisplay":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """However the run ended: the figures stay, and the terminal gets its cursor back."""
        self._stop("stopped")

    def start(self, plan: Plan) -> None:
        self._story = Story(plan)
        self._live = Live(console=self._console, get_renderable=self._draw, refresh_per_second=REFRESHES_PER_SECOND)
        self._live.start(refresh=True)

    def update(self, record: Record) -> None:
        assert self._story is not None, "start() comes first"
        with self._lock:
            self._story.add(record)

    def message(self, text: str) -> None:
        self._console.print(Text(text, "yellow"))

    def finish(self, result: Result) -> None:
        trained = self._story is not None and bool(self._story.record)
        self._stop("done")
        for line in summary(result, trained):
            self._console.print(Text(line))
        for line in offer(self._next_steps(result.steps)):
            self._console.print(Text(line), soft_wrap=True)  # commands must survive being copied

    def _stop(self, ending: Ending) -> None:
        if self._story is None or self._live is None:
            return
        with self._lock:
            self._story.end(ending)
        self._live.stop()

    def _draw(self) -> RenderableType:
        assert self._story is not None
        width, height = self._console.size
        if width < self._drawn_width:
            # The terminal has wrapped the lines of the old panel, so going up by their number would not undo it.
            self._console.control(Control.clear(), Control.home())
        self._drawn_width = min(width, WIDEST)
        with self._lock:
            panel = run_panel(self._story, width, height)
        return Group(panel, Text())  # the cursor rests below: a ^C there spoils nothing
