"""The mistakes found in a graph, a line each, and the name that a mistyped one most likely meant."""

import difflib
from collections.abc import Iterable


class Problems:
    """Lines in the order they were found, none of them twice."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, name: str, problem: str) -> None:
        """A problem of the component or option of this name; without a name, of all components together."""
        line = f"agent.components.{name}: {problem}" if name else f"agent.components: {problem}"
        if line not in self.lines:
            self.lines.append(line)


def nearest(word: str, names: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(word, list(names), n=1)), None)


def hint(word: str, names: Iterable[str], otherwise: str = "") -> str:
    """What to add to a message about `word`: the nearest name, or something else if none is near."""
    name = nearest(word, names)
    return f"; did you mean {name}?" if name else otherwise
