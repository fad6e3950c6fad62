"""The display of a run in a Jupyter notebook: one output that is updated in place."""

import sys
import time
from collections.abc import Callable
from io import StringIO
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.text import Text

from engram.display.panel import run_panel
from engram.display.progress import Record, RunProgress
from engram.display.summary import NextSteps, explain_last_batch, no_next_steps, offer, summary

if TYPE_CHECKING:
    from engram.training.run import RunPlan, RunResult

COLUMNS, ROWS = 96, 40
SECONDS_BETWEEN_UPDATES = 0.5  # a notebook keeps every update that it is sent
PAGE = "<pre style=\"line-height:1.2;font-family:Menlo,'DejaVu Sans Mono',consolas,monospace\">{code}</pre>"


def in_notebook() -> bool:
    """Whether this program runs in a kernel that shows rich output. IPython is not imported for this."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class NotebookDisplay:
    """The panel of the terminal as HTML, with messages above it and the summary below."""

    def __init__(self, show: Callable[..., Any], next_steps: NextSteps = no_next_steps) -> None:
        """`show` is IPython's `display`."""
        self._show, self._next_steps = show, next_steps
        self._progress: RunProgress | None = None
        self._output: Any = None  # the handle of the output in the notebook
        self._shown_time = 0.0
        self._building: list[str] = []  # until `start`
        self._messages: list[str] = []
        self._ending: list[str] = []

    def __enter__(self) -> "NotebookDisplay":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.end("stopped")
            self._draw()

    def building(self, run: str, what: str) -> None:
        """Show at once what is being built, until `start`."""
        self._building = [f"{run}: building {what} …"]
        self._draw()

    def start(self, plan: "RunPlan") -> None:
        self._building = []
        self._progress = RunProgress(plan)
        if explanation := explain_last_batch(plan):
            self._messages.append(explanation)
        self._draw()

    def update(self, record: Record) -> None:
        assert self._progress is not None, "start() comes first"
        self._progress.add(record)
        if time.monotonic() - self._shown_time >= SECONDS_BETWEEN_UPDATES:
            self._draw()

    def message(self, text: str) -> None:
        self._messages.append(text)
        self._draw()

    def finish(self, result: "RunResult") -> None:
        trained = self._progress is not None and bool(self._progress.record)
        self._ending = [*summary(result, trained), *offer(self._next_steps(result.steps))]
        if self._progress is not None:
            self._progress.end("done")
        self._draw()

    def _draw(self) -> None:
        self._shown_time = time.monotonic()
        content = {"text/html": self._html(), "text/plain": self._text()}
        if self._output is None:
            self._output = self._show(content, raw=True, display_id=True)
        else:
            self._output.update(content, raw=True)

    def _html(self) -> str:
        return self._render(record=True).export_html(inline_styles=True, code_format=PAGE)

    def _text(self) -> str:
        console = self._render(record=False)
        assert isinstance(console.file, StringIO)
        return console.file.getvalue()

    def _render(self, record: bool) -> Console:
        console = Console(  # not for Jupyter, where it would show an output of its own instead of writing to the file
            file=StringIO(),
            record=record,
            width=COLUMNS,
            height=ROWS,
            force_terminal=False,
            force_jupyter=False,
            color_system=None,
        )
        parts = [Text(message, "yellow") for message in [*self._building, *self._messages]]
        panel = [] if self._progress is None else [run_panel(self._progress, COLUMNS, ROWS)]
        console.print(Group(*parts, *panel, *(Text(line) for line in self._ending)))
        return console
