"""The argument parser of all verbs: argparse, with mistakes as `UserError` and settings as the remaining arguments."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from engram.nearest import nearest, suggestion
from engram.settings import UserError
from engram.stored.files import file_in_run


class ArgumentParser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` whose help keeps its line breaks and whose options cannot be abbreviated."""

    def __init__(self, **options: Any):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{self.prog}: {message} (see --help)")

    def parse_settings(self, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """The parsed options, and all other arguments: overrides of settings."""
        options, overrides = self.parse_known_args(argv)
        known = [name for action in self._actions for name in action.option_strings]
        for word in overrides:
            if word.startswith("-") and (option := nearest(word, known)):
                raise UserError(f"{self.prog}: no option {word}; did you mean {option}?")
        return options, overrides


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


def add_page_options(parser: argparse.ArgumentParser, where: str) -> None:
    """The options of every verb that writes a page; `where` says where it is by default."""
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"the page; by default {where}")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")


def page_path(out: Path | None, directory: Path, name: str) -> Path:
    """The file for a page: the one given as `--out`, or the one of this name in the run's directory."""
    path = out or file_in_run(directory, name, "--out")
    if path.is_dir():
        raise UserError(f"--out: {path} is a directory: name a file, such as {path / name}")
    return path


def add_trust_option(parser: argparse.ArgumentParser) -> None:
    """The option of every verb that opens stored runs."""
    parser.add_argument(
        "--trust", action="store_true", help="run code that the run names, even if you did not make the run here"
    )
