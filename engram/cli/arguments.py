"""The argument parser of all verbs: argparse, with mistakes as `UserError` and settings as the remaining words."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from engram.nearest import nearest, suggestion
from engram.settings import UserError


class ArgumentParser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` whose help keeps its line breaks and whose options cannot be abbreviated."""

    def __init__(self, **options: Any):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{self.prog}: {message} (see --help)")

    def parse_settings(self, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """The parsed options and the other words, which are settings."""
        options, settings = self.parse_known_args(words)
        known = [name for action in self._actions for name in action.option_strings]
        for word in settings:
            if word.startswith("-") and (option := nearest(word, known)):
                raise UserError(f"{self.prog}: no option {word}; did you mean {option}?")
        return options, settings


def positive_int(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number above 0")
    return int(text)


def names_from(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Parses a list such as fast,example, and rejects unknown names."""

    def names(text: str) -> list[str]:
        for name in (found := text.split(",")):
            if name not in known:
                hint = suggestion(name, known)
                raise argparse.ArgumentTypeError(f"unknown name '{name}'{hint} ({', '.join(known)})")
        return found

    return names


def add_trust(parser: argparse.ArgumentParser) -> None:
    """The option of every verb that opens stored runs."""
    parser.add_argument(
        "--trust", action="store_true", help="run code that the run names, even if you did not make the run here"
    )
