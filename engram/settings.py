"""The base of all settings models, and the errors for users' mistakes."""

import re

from pydantic import BaseModel, ConfigDict

# Characters that control a terminal or reverse text: with them an untrusted file could fake what a user sees.
CONTROL = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069]")

WORD, LONGEST_WORD = re.compile(r"\S+"), 1000  # characters of a name or value in a message
MOST_LINES = 100  # of a message


def printable(text: str) -> str:
    """Text without control characters, except for new lines and tabs.

    >>> printable("fast\\x1b[2K")
    'fast�[2K'
    """
    return CONTROL.sub("\ufffd", text)


def _shorten(word: re.Match[str]) -> str:
    return word[0] if len(word[0]) <= LONGEST_WORD else f"{word[0][:LONGEST_WORD]}…"


def _shorten_lines(text: str) -> str:
    """The first lines, and the last one, which often says what to do."""
    lines = text.splitlines()
    if len(lines) <= MOST_LINES:
        return text
    first = lines[: MOST_LINES - 2]
    return "\n".join([*first, f"… {len(lines) - MOST_LINES + 1:,} more lines …", lines[-1]])


def shown(text: str) -> str:
    """Text that is safe to show: no control characters, long words and many lines cut short."""
    return WORD.sub(_shorten, _shorten_lines(printable(text)))


class Settings(BaseModel):
    """A frozen model in which unknown keys, NaN and infinity are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)


class UserError(Exception):
    """A user's mistake: the command line prints its message without a traceback and exits with `exit_code`.

    >>> import engram
    >>> try:
    ...     engram.open("runs/frist")
    ... except engram.UserError as error:
    ...     print(error)
    run: no run 'frist' in runs; did you mean first?
    """

    exit_code = 2

    def __str__(self) -> str:
        return shown(super().__str__())


class SettingsError(UserError):
    """Mistakes in the settings, one line each.

    >>> import engram
    >>> try:
    ...     engram.train("recall", total_timesteps=0, sed=3)
    ... except engram.SettingsError as error:
    ...     print(*error.lines, sep="; ")
    sed: no such option; did you mean seed?; trainer.total_timesteps: 0 is too small: at least 1
    """

    def __init__(self, lines: list[str]):
        super().__init__("\n".join(lines))
        self.lines = lines
