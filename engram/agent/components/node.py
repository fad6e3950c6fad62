"""Node: one named component of a YAML graph, read from plain data.

A mistake is recorded and replaced by the nearest valid value, so that the rest of the graph is checked too.
Names in the data are only looked up in `COMPONENTS`; nothing is imported or run.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from engram.agent.components import COMPONENTS
from engram.agent.components.component import Component
from engram.nearest import nearest, suggestion

# Kinds of observations and of actions. Countable: a few symbols only.
Condition = Literal["tokens", "no_tokens", "vector", "image", "symbols", "parts", "countable", "discrete", "continuous"]

CONDITIONS = get_args(Condition)
SOURCE = re.compile(r"([A-Za-z_]\w*)(?:\[(-?\d{1,9})?:(-?\d{1,9})?\])?")
MAX_SOURCES = 100
MAX_HINTS = 15  # later problems get none
MAX_PROBLEMS = 100  # later ones are not recorded


class Problems:
    """The mistakes found in a graph, one line each, without duplicates."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @property
    def too_many_for_hints(self) -> bool:
        """Whether further problems get no hint: finding the nearest names takes time."""
        return len(self.lines) >= MAX_HINTS

    def add(self, name: str, problem: str) -> None:
        """Record a problem of the component or option of this name, or of the whole graph if the name is empty."""
        line = f"agent.components.{name}: {problem}" if name else f"agent.components: {problem}"
        if len(self.lines) < MAX_PROBLEMS and line not in self.lines:
            self.lines.append(line)


@dataclass(frozen=True)
class NodeInput:
    """The output of another node, or a slice of it from `start` to `stop`."""

    name: str
    start: int | None = None
    stop: int | None = None

    @property
    def is_slice(self) -> bool:
        return self.start is not None or self.stop is not None

    def __str__(self) -> str:
        start, stop = ("" if end is None else end for end in (self.start, self.stop))
        return f"{self.name}[{start}:{stop}]" if self.is_slice else self.name


@dataclass(frozen=True)
class Node:
    name: str
    kind: str
    sources: tuple[NodeInput, ...] = ()
    conditions: tuple[Condition, ...] = ()  # the environment must have all of these, or the node is left out
    component: Component | None = None  # None: its options are invalid
    sources_valid: bool = True  # whether all sources were readable and exist


def read_node(name: str, content: object, problems: Problems) -> Node:
    """A node from {kind, sources, for, and the component's options}."""
    if not isinstance(content, Mapping):
        problems.add(name, f"got {content!r}, expected options: write {{kind: KIND, sources: [NAME], …}}")
        return Node(name, "")
    options = {str(key): value for key, value in content.items()}
    sources, sources_valid = _read_sources(name, options.pop("sources", []), problems)
    conditions = _read_conditions(name, options.pop("for", None) or [], problems)
    kind = _read_kind(name, options.pop("kind", None), problems)
    if kind is None:
        return Node(name, "", sources, conditions)
    return Node(name, kind, sources, conditions, _read_options(name, kind, options, problems), sources_valid)


def _read_sources(name: str, given: object, problems: Problems) -> tuple[tuple[NodeInput, ...], bool]:
    """The sources, and whether all of them were readable."""
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list | tuple):
        problems.add(f"{name}.sources", f"{given!r} is not a list of names: write [NAME, NAME]")
        return (), False
    if len(names) > MAX_SOURCES:
        problems.add(f"{name}.sources", f"{len(names):,} sources, expected at most {MAX_SOURCES}")
        return (), False
    sources, valid = [], True
    for text in names:
        match = SOURCE.fullmatch(str(text).replace(" ", ""))
        if match is None:
            fix = "write NAME, or 'NAME[START:STOP]' for a slice"
            problems.add(f"{name}.sources", f"{text!r} is not the name of a component: {fix}")
            match, valid = SOURCE.match(str(text)), False  # the name that it begins with, if any
        if match is not None:
            sources.append(NodeInput(match[1], *(None if end is None else int(end) for end in match.groups()[1:])))
    return tuple(sources), valid


def _read_conditions(name: str, given: Any, problems: Problems) -> tuple[Condition, ...]:
    conditions: list[Any] = []
    for condition in given if isinstance(given, list | tuple) else [given]:
        if condition not in CONDITIONS:
            hint = suggestion(str(condition), CONDITIONS)
            problems.add(f"{name}.for", f"{condition!r} is not one of {', '.join(CONDITIONS)}{hint}")
        conditions.append(condition if condition in CONDITIONS else nearest(str(condition), CONDITIONS))
    return tuple(condition for condition in conditions if condition is not None)


def _read_kind(name: str, given: object, problems: Problems) -> str | None:
    if not isinstance(given, str):
        problems.add(f"{name}.kind", f"missing: give one of {', '.join(COMPONENTS)}")
        return None
    if given in COMPONENTS:
        return given
    if problems.too_many_for_hints:
        problems.add(f"{name}.kind", f"no kind '{given}'")
        return None
    hint = suggestion(given, COMPONENTS, otherwise=f": give one of {', '.join(COMPONENTS)}")
    problems.add(f"{name}.kind", f"no kind '{given}'{hint}")
    return nearest(given, COMPONENTS)


def _read_options(name: str, kind: str, options: dict[str, Any], problems: Problems) -> Component | None:
    known = COMPONENTS[kind].model_fields
    unknown = [option for option in options if option not in known]
    if unknown and problems.too_many_for_hints:
        problems.add(name, f"{kind} has no option {', '.join(unknown)}")
        return None
    for option in unknown:
        hint = suggestion(option, known, otherwise=f": it has {', '.join(known) or 'none'}")
        problems.add(f"{name}.{option}", f"{kind} has no such option{hint}")
    corrected = {nearest(option, known) or "": options[option] for option in unknown}
    corrected |= {option: value for option, value in options.items() if option in known}
    corrected.pop("", None)
    try:
        return COMPONENTS[kind].model_validate(corrected)
    except ValidationError as error:
        errors = error.errors()
    # Only the first error of each option is reported.
    first: dict[tuple[int | str, ...], ErrorDetails] = {}
    for details in errors:
        first.setdefault(details["loc"][:1], details)
    for details in first.values():
        problems.add(".".join([name, *map(str, details["loc"][:1])]), _message(details))
    return None


def _message(details: ErrorDetails) -> str:
    if details["type"] == "missing":
        return f"missing: give {details['loc'][0]}: VALUE"
    if details["type"] == "value_error":
        return str(details["ctx"]["error"])
    return f"{details['input']!r}: {details['msg'][:1].lower()}{details['msg'][1:]}"
