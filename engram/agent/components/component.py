"""A component as YAML describes it, read from plain data: its kind, its sources and its options.

A mistake is noted and does not end the reading: what was most likely meant stands in for it, so that the rest of the
graph is judged as well. No name in the data is ever anything but a name.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from engram.agent.components.kind import Kind
from engram.agent.components.kinds import KINDS
from engram.agent.components.problems import Problems
from engram.nearest import nearest, suggestion

Need = Literal["tokens", "vector", "image", "discrete", "continuous"]  # observations and actions of an environment

NEEDS = get_args(Need)
SOURCE = re.compile(r"([A-Za-z_]\w*)(?:\[(-?\d+)?:(-?\d+)?\])?")


@dataclass(frozen=True)
class Source:
    """Another component's output, or the part of it from `start` to `stop`."""

    name: str
    start: int | None = None
    stop: int | None = None

    @property
    def is_part(self) -> bool:
        return self.start is not None or self.stop is not None

    def __str__(self) -> str:
        start, stop = ("" if end is None else end for end in (self.start, self.stop))
        return f"{self.name}[{start}:{stop}]" if self.is_part else self.name


@dataclass(frozen=True)
class Component:
    name: str
    kind: str
    sources: tuple[Source, ...] = ()
    need: Need | None = None  # what the environment must have, or the component is left out
    options: Kind | None = None  # None: they could not be read
    sound: bool = True  # whether all sources could be read and are there


def read_component(name: str, content: object, problems: Problems) -> Component:
    """From {kind, sources, for, and the kind's options}."""
    if not isinstance(content, Mapping):
        problems.note(name, f"{content!r}, where options should be: write {{kind: KIND, sources: [NAME], …}}")
        return Component(name, "")
    options = {str(key): value for key, value in content.items()}
    sources, sound = _read_sources(name, options.pop("sources", []), problems)
    need = _read_need(name, options.pop("for", None), problems)
    kind = _read_kind(name, options.pop("kind", None), problems)
    if kind is None:
        return Component(name, "", sources, need)
    return Component(name, kind, sources, need, _read_options(name, kind, options, problems), sound)


def _read_sources(name: str, given: object, problems: Problems) -> tuple[tuple[Source, ...], bool]:
    """The sources, and whether all of them could be read."""
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list | tuple):
        problems.note(f"{name}.sources", f"{given!r} is not a list of names: write [NAME, NAME]")
        return (), False
    sources, sound = [], True
    for text in names:
        match = SOURCE.fullmatch(str(text).replace(" ", ""))
        if match is None:
            problems.note(f"{name}.sources", f"{text!r} is no component: write NAME, or 'NAME[START:STOP]' for a part")
            match, sound = SOURCE.match(str(text)), False
        if match is not None:
            sources.append(Source(match[1], *(None if end is None else int(end) for end in match.groups()[1:])))
    return tuple(sources), sound


def _read_need(name: str, given: Any, problems: Problems) -> Need | None:
    if given is not None and given not in NEEDS:
        problems.note(f"{name}.for", f"{given!r} is not one of {', '.join(NEEDS)}{suggestion(str(given), NEEDS)}")
        given = nearest(str(given), NEEDS)
    return given


def _read_kind(name: str, given: object, problems: Problems) -> str | None:
    if not isinstance(given, str):
        problems.note(f"{name}.kind", f"none is given: one of {', '.join(KINDS)}")
        return None
    if given in KINDS:
        return given
    there = f": one of {', '.join(KINDS)}"
    problems.note(f"{name}.kind", f"no kind '{given}'{suggestion(given, KINDS, otherwise=there)}")
    return nearest(given, KINDS)


def _read_options(name: str, kind: str, options: dict[str, Any], problems: Problems) -> Kind | None:
    known = KINDS[kind].model_fields
    unknown = [option for option in options if option not in known]
    for option in unknown:
        there = f": it has {', '.join(known) or 'none'}"
        problems.note(f"{name}.{option}", f"{kind} has no such option{suggestion(option, known, otherwise=there)}")
    meant = {nearest(option, known) or "": options[option] for option in unknown}
    meant |= {option: value for option, value in options.items() if option in known}
    meant.pop("", None)
    try:
        return KINDS[kind].model_validate(meant)
    except ValidationError as error:
        first = {details["loc"][:1]: details for details in reversed(error.errors())}  # one for each option
    for details in reversed(first.values()):
        problems.note(".".join([name, *map(str, details["loc"][:1])]), _sentence(details))
    return None


def _sentence(details: ErrorDetails) -> str:
    if details["type"] == "missing":
        return f"missing: give {details['loc'][0]}: VALUE"
    if details["type"] == "value_error":
        return str(details["ctx"]["error"])
    return f"{details['input']!r}: {details['msg'][:1].lower()}{details['msg'][1:]}"
