"""Overrides of settings, `NAME=VALUE` or from Python: checks their names and reads their values."""

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from engram.config import setting_names
from engram.config.groups import GROUPS, choices, require_plain_data
from engram.config.values import read_value
from engram.nearest import nearest, suggestion
from engram.settings import UserError

NAME = re.compile(r"\w+(\.\w+)*")

CHOSEN_BY_GROUP = {"env.kind", "agent.name", "py_agent.name"}
UNREAD = object()
NO_VALUE = "{name}: no value: write {name}=VALUE without spaces"


class Override(NamedTuple):
    """One `NAME=VALUE`, with the value as it was typed; from Python, also the value itself."""

    name: str
    text: str
    value: Any = UNREAD


def from_python(settings: Mapping[str, Any]) -> Iterator[Override]:
    """The overrides of keyword arguments, dotted or nested: `trainer={"ppo": {"gamma": 0.9}}`."""
    for name, value in settings.items():
        if name in GROUPS and isinstance(value, Mapping):
            yield from from_python({f"{name}.{key}": part for key, part in value.items()})
        elif not NAME.fullmatch(name):
            raise UserError(f"{name}={value}: '{name}' is not the name of a setting: write NAME=VALUE without spaces")
        else:
            plain = _plain(value, name)
            if plain == "" and (name in GROUPS or name in setting_names.known()):
                raise UserError(NO_VALUE.format(name=name))
            yield Override(name, _text(plain), plain)


def parse_override(word: str) -> Override:
    """Split a word of the command line; raise `UserError` with the right way to write it."""
    name, equals, text = word.partition("=")
    if word.startswith("-"):
        bare = word.lstrip("-").replace("-", "_")
        raise UserError(f"{word}: settings have no dashes: write {bare if '=' in bare else bare + '=VALUE'}")
    if word.startswith(("+", "~")):
        raise UserError(f"{word}: settings cannot be added (+) or deleted (~): write NAME=VALUE")
    if not equals:
        raise UserError(f"{word}: settings are written NAME=VALUE{_guess(word)}")
    if not NAME.fullmatch(name):
        raise UserError(f"{word}: '{name}' is not the name of a setting: write NAME=VALUE without spaces")
    if not text:
        raise UserError(NO_VALUE.format(name=name))
    return Override(name, text)


def check_name(name: str, usable: frozenset[str]) -> None:
    """Raise `UserError` with the nearest usable name if this one cannot be set."""
    if _has_hidden_part(name):
        raise UserError(f"{name}: names of settings do not begin with an underscore")
    section, _, rest = name.partition(".")
    if name in CHOSEN_BY_GROUP:
        raise UserError(f"{name}: choose with {section}=NAME")
    if name in usable or setting_names.is_open(name, usable):
        return
    if section == "env" and (kinds := setting_names.environments_with(name)):
        raise UserError(f"{name}: not in the chosen environment, only with env={'|'.join(kinds)}")
    if section in ("agent", "py_agent") and rest:
        other = "agent" if section == "py_agent" else "py_agent"
        if f"{other}.name" in usable and f"{section}.name" not in usable:
            near = f", or write {other}.{rest}" if f"{other}.{rest}" in usable else ""
            raise UserError(f"{name}: this run has no {section}: give {section}=NAME{near}")
    raise UserError(f"{name}: no such option{suggestion(name, usable - CHOSEN_BY_GROUP)}")


def override_value(override: Override) -> Any:
    """The value of an override. Settings that are text take it literally: `run=1e5` is not a number."""
    name, text, value = override
    require_plain_data(text if value is UNREAD else value, name)
    if value is UNREAD:
        value = _read(name, text)
    types = setting_names.leaf_types(setting_names.known().get(name, Any))
    if isinstance(value, bool) and bool not in types and (int in types or float in types):
        raise UserError(f"{name}: {text.lower()} is not a number")
    return value


def _read(name: str, text: str) -> Any:
    if setting_names.is_text(name) and text[0] not in "'\"" and text != "null":
        return text
    try:
        value = read_value(text)
    except ValueError as error:
        if str(error) == "several values":
            raise UserError(f"{name}: {text} is several values: give one (a list is written [a,b])") from None
        raise UserError(f"{name}: {text} cannot be read ({error}): put text in quotes") from None
    require_plain_data(value, name)
    return value


def _plain(value: Any, name: str) -> Any:
    """A value from Python as plain data: NumPy scalars, paths and tuples are accepted too."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(part, f"{name}.{key}") for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part, name) for part in value]
    raise UserError(
        f"{name}: {value!r} is a {type(value).__name__}: expected a number, text, true or false, a list or a mapping"
    )


def _text(value: Any) -> str:
    """A value from Python as it is typed on the command line."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)


def _has_hidden_part(name: str) -> bool:
    parts = name.split(".")
    if name.startswith("agent.components.") and parts[2] != "_target_":
        del parts[2]  # components may be called _core_ or _value_
    return any(part.startswith("_") for part in parts)


def _guess(word: str) -> str:
    """What a word without `=` may have meant: a choice of a group, or a setting without its value."""
    for group in GROUPS:
        if word in choices(group):
            return f"; did you mean {group}={word}?"
    name = nearest(word, setting_names.known())
    return f"; did you mean {name}=VALUE?" if name else ""
