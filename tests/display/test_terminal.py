"""The live display: when it is used, what it draws, and that it restores the terminal."""

import io
import sys

import pytest
from rich.console import Console

from engram.display.plain import PlainDisplay
from engram.display.terminal import LiveDisplay, make_display

SHOW_CURSOR, HIDE_CURSOR, CLEAR = "\x1b[?25h", "\x1b[?25l", "\x1b[2J"


class Terminal(io.TextIOWrapper):
    def __init__(self, encoding: str = "utf-8", is_terminal: bool = True) -> None:
        super().__init__(io.BytesIO(), encoding=encoding)
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.fixture
def console() -> Console:
    able = {"TERM": "xterm"}  # whatever the tests run in
    return Console(file=io.StringIO(), width=80, height=30, force_terminal=True, force_interactive=True, _environ=able)


def test_a_terminal_gets_the_panel_and_anything_else_plain_lines():
    assert isinstance(make_display(Terminal(), environ={"TERM": "xterm"}), LiveDisplay)
    assert isinstance(make_display(Terminal(is_terminal=False), environ={"TERM": "xterm"}), PlainDisplay)
    assert isinstance(make_display(Terminal(), environ={"TERM": "dumb"}), PlainDisplay)
    assert isinstance(make_display(Terminal(), environ={"TERM": "xterm", "CI": "true"}), PlainDisplay)
    assert isinstance(make_display(Terminal("latin-1"), environ={"TERM": "xterm"}), PlainDisplay)


def test_forced_colour_does_not_make_a_pipe_a_terminal(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert isinstance(make_display(Terminal(is_terminal=False)), PlainDisplay)


def test_the_summary_follows_the_last_panel(console, plan, record, result):
    with LiveDisplay(console, next_steps=lambda _: ["./tools/train.py run=first " + "x" * 80]) as display:
        display.start(plan)
        display.update(record(245, mean_return=0.93))
        display.finish(result())
    output = console.file.getvalue()
    last_panel = output.rindex("1,003,520 of 1,000,000 steps")
    assert output.index("Return 0.93: above what any policy without memory can reach") > last_panel
    assert "./tools/train.py run=first " + "x" * 80 in output  # unbroken, for copying


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_the_cursor_and_the_streams_are_restored_after_an_error(console, plan, record, error):
    def train() -> None:
        with LiveDisplay(console) as display:
            display.start(plan)
            display.update(record(3))
            raise error

    streams = sys.stdout, sys.stderr
    with pytest.raises(error):
        train()
    output = console.file.getvalue()
    assert output.rindex(SHOW_CURSOR) > output.rindex(HIDE_CURSOR)
    assert "12,288 of 1,000,000 steps" in output
    assert "stopped" in output
    assert (sys.stdout, sys.stderr) == streams


def test_messages_appear_literally_before_during_and_after_the_panel(console, plan, record, result):
    with LiveDisplay(console) as display:
        display.message("before [bold]")
        display.start(plan)
        display.message("during [/]")
        print("printed by a library")
        display.update(record(1))
        display.finish(result())
        display.message("after")
    output = console.file.getvalue()
    places = [output.index(text) for text in ("before [bold]", "during [/]", "printed by a library", "after")]
    assert places == sorted(places)


def test_a_run_that_fails_before_it_starts_prints_nothing(console):
    with LiveDisplay(console):
        pass
    assert console.file.getvalue() == ""


def test_a_terminal_that_becomes_narrower_is_cleared(console, plan, record, result):
    with LiveDisplay(console) as display:
        display.start(plan)
        display.update(record(1))
        assert CLEAR not in console.file.getvalue()
        console.width = 50
        display.finish(result())
    assert console.file.getvalue().count(CLEAR) == 1


def test_starting_a_complete_run_again_says_so(console, plan, result):
    plan.steps_done = plan.total_timesteps
    with LiveDisplay(console) as display:
        display.start(plan)
        display.finish(result())
    assert "Nothing left to train" in console.file.getvalue()


def test_what_is_being_built_is_shown_at_once_and_gone_when_training_starts(console, plan):
    with LiveDisplay(console) as display:
        display.building("first", "fast on tmaze")
        assert "building fast on tmaze" in console.file.getvalue()
        display.start(plan)
    output = console.file.getvalue()
    assert output.rindex("1,000,000 steps") > output.rindex("building fast on tmaze")
    assert output.rindex(SHOW_CURSOR) > output.rindex(HIDE_CURSOR)


def test_a_run_that_cannot_be_built_restores_the_terminal(console):
    def build() -> None:
        with LiveDisplay(console) as display:
            display.building("first", "fast on tmaze")
            raise ValueError("no such environment")

    with pytest.raises(ValueError, match="no such environment"):
        build()
    output = console.file.getvalue()
    assert output.rindex(SHOW_CURSOR) > output.rindex(HIDE_CURSOR)
