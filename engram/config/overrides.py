"""Overrides of settings, `NAME=VALUE` or from Python: checks their names and reads their values."""

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple, NoReturn

import numpy as np
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigTypeError

from engram.config.groups import GROUPS, choices, require_plain_data
from engram.config.run import environments_with, is_open_setting, is_text_setting, known_settings, leaf_types
from engram.nearest import nearest, suggestion
from engram.settings import UserError
from engram.stored.files import MAX_YAML_DEPTH

NAME = re.compile(r"\w+(\.\w+)*")

CHOSEN_BY_GROUP = {"env.kind", "agent.name", "py_agent.name"}  # set with env=NAME and so on, not by these names
NOT_PARSED = object()  # the value of an override that has only its text
NO_VALUE = "{name}: no value: write {name}=VALUE without spaces"


class Override(NamedTuple):
    """One `NAME=VALUE`, with the value as it was typed; from Python, also the value itself."""

    name: str
    text: str
    value: Any = NOT_PARSED


def from_python(settings: Mapping[str, Any]) -> Iterator[Override]:
    """The overrides of keyword arguments, dotted or nested: `trainer={"ppo": {"gamma": 0.9}}`."""
    for name, value in settings.items():
        if name in GROUPS and isinstance(value, Mapping):
            yield from from_python({f"{name}.{key}": part for key, part in value.items()})
        elif not NAME.fullmatch(name):
            raise UserError(f"{name}={value}: '{name}' is not the name of a setting: write NAME=VALUE without spaces")
        else:
            plain = _plain(value, name)
            if plain == "" and (name in GROUPS or name in known_settings()):
                raise UserError(NO_VALUE.format(name=name))
            yield Override(name, as_text(plain), plain)


def parse_override(word: str) -> Override:
    """Split a word of the command line; raise `UserError` with the right way to write it."""
    name, equals, text = word.partition("=")
    if word.startswith("-"):
        bare = word.lstrip("-").replace("-", "_")
        raise UserError(f"{word}: settings have no dashes: write {bare if '=' in bare else bare + '=VALUE'}")
    if word.startswith(("+", "~")):
        raise UserError(f"{word}: settings cannot be added (+) or deleted (~): write NAME=VALUE")
    if not equals:
        raise UserError(f"{word}: settings are written NAME=VALUE{_suggest_override(word)}")
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
    if name in usable or is_open_setting(name, usable):
        return
    if section == "env" and (kinds := environments_with(name)):
        raise UserError(f"{name}: not in the chosen environment, only with env={'|'.join(kinds)}")
    if section in ("agent", "py_agent") and rest:
        other = "agent" if section == "py_agent" else "py_agent"
        if f"{other}.name" in usable and f"{section}.name" not in usable:
            near = f", or write {other}.{rest}" if f"{other}.{rest}" in usable else ""
            raise UserError(f"{name}: this run has no {section}: give {section}=NAME{near}")
    raise UserError(f"{name}: no such option{suggestion(name, usable - CHOSEN_BY_GROUP)}")


def set_value(tree: DictConfig, override: Override) -> None:
    """Write an override into the settings. It replaces a list by a mapping and the other way around."""
    name, value = override.name, override_value(override)
    try:
        try:
            OmegaConf.update(tree, name, value, merge=True, force_add=True)
        except ConfigTypeError:
            OmegaConf.update(tree, name, value, merge=False, force_add=True)
    except ValueError:  # OmegaConf read a name as the index of a list
        section, _, key = name.rpartition(".")
        raise UserError(f"{section}: a list, expected a section with the setting {key}") from None


def override_value(override: Override) -> Any:
    """The value of an override. Settings that are text take it literally: `run=1e5` is not a number."""
    name, text, value = override
    require_plain_data(text if value is NOT_PARSED else value, name)
    if value is NOT_PARSED:
        value = _parse_text(name, text)
    types = leaf_types(known_settings().get(name, Any))
    if isinstance(value, bool) and bool not in types and (int in types or float in types):
        raise UserError(f"{name}: {text.lower()} is not a number")
    return value


def _parse_text(name: str, text: str) -> Any:
    if is_text_setting(name) and text[0] not in "'\"" and text != "null":
        return text
    try:
        value = read_value(text)
    except ValueError as error:
        if str(error) == "several values":
            raise UserError(f"{name}: {text} is several values: give one (a list is written [a,b])") from None
        raise UserError(f"{name}: {text} cannot be read ({error}): put text in quotes") from None
    require_plain_data(value, name)
    return value


def _plain(value: Any, name: str, depth: int = 0) -> Any:
    """A value from Python as plain data: NumPy scalars, paths and tuples are accepted too."""
    if depth > MAX_YAML_DEPTH:
        raise UserError(f"{name[:100]}…: nested more than {MAX_YAML_DEPTH} levels deep, or holds itself")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(part, f"{name}.{key}", depth + 1) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part, name, depth + 1) for part in value]
    raise UserError(
        f"{name}: {value!r} is of type {type(value).__name__}: expected a number, text, true or false, a list or a "
        "mapping"
    )


def as_text(value: Any) -> str:
    """A value from Python as it is typed on the command line."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)


def _has_hidden_part(name: str) -> bool:
    parts = name.split(".")
    if name.startswith("agent.components.") and parts[2] != "_target_":
        del parts[2]  # components may be called _core_ or _value_
    return any(part.startswith("_") for part in parts)


def _suggest_override(word: str) -> str:
    """A hint for a word without `=`: it may be a choice of a group, or a setting without its value."""
    for group in GROUPS:
        if word in choices(group):
            return f"; did you mean {group}={word}?"
    name = nearest(word, known_settings())
    return f"; did you mean {name}=VALUE?" if name else ""


INTEGER = r"(?:0|[1-9](?:_?[0-9])*)"
DECIMAL = rf"(?:{INTEGER}\.|{INTEGER}?\.[0-9](?:_?[0-9])*)"
INTEGER_TEXT = re.compile(rf"[+-]?{INTEGER}")
FLOAT_TEXT = re.compile(
    rf"[+-]?(?:{DECIMAL}|(?:{DECIMAL}|{INTEGER})e[+-]?[0-9](?:_?[0-9])*|inf|nan)", flags=re.IGNORECASE
)
CONSTANTS = {"null": None, "true": True, "false": False}

ESCAPE = r"\\[\\()\[\]{}:=, \t]"
BARE_TEXT = re.compile(rf"(?:{ESCAPE}|[^()\[\]{{}},='\"])+")
BARE_KEY = re.compile(rf"(?:{ESCAPE}|[^()\[\]{{}},='\":])+")
CLASS_KEY = re.compile(r"[\w.]+:[A-Za-z_]\w*(?=[ \t]*:)")  # package.module:Class
QUOTED_TEXT = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", flags=re.DOTALL)


def read_value(text: str) -> Any:
    """Read one value; raise `ValueError` with the reason if that is not possible.

    >>> read_value("{kind:linear,to:0,steps:[1_000,2e3,'a, b']}")
    {'kind': 'linear', 'to': 0, 'steps': [1000, 2000.0, 'a, b']}
    """
    return _Reader(text).read_all()


class _Reader:
    """A recursive-descent parser: each method reads one thing at `position` and moves past it."""

    def __init__(self, text: str):
        self.text = text
        self.position = 0

    def read_all(self) -> Any:
        value = self.read_element()
        if self.skip(","):
            raise ValueError("several values")
        if self.position < len(self.text):
            self.fail()
        return value

    def read_element(self) -> Any:
        self.skip_blanks()
        if self.skip("["):
            return self.read_list()
        if self.skip("{"):
            return self.read_mapping()
        return self.read_text(BARE_TEXT)

    def read_list(self) -> list[Any]:
        values: list[Any] = []
        while not self.skip("]"):
            if values:
                self.expect(",")
            values.append(self.read_element())
        return values

    def read_mapping(self) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        while not self.skip("}"):
            if values:
                self.expect(",")
            key = self.read_text(CLASS_KEY if CLASS_KEY.match(self.text, self.position) else BARE_KEY)
            self.expect(":")
            values[key] = self.read_element()
        return values

    def read_text(self, pattern: re.Pattern[str]) -> Any:
        """Quoted text, or bare text of this pattern."""
        if quoted := QUOTED_TEXT.match(self.text, self.position):
            self.position = quoted.end()
            self.skip_blanks()
            return _unquote(quoted[0])
        bare = pattern.match(self.text, self.position)
        if bare is None or not bare[0].strip():
            self.fail()
        self.position = bare.end()
        return _typed(bare[0])

    def skip(self, mark: str) -> bool:
        """Move past the mark and the blanks around it, if it is next."""
        found = re.compile(rf"[ \t]*{re.escape(mark)}[ \t]*").match(self.text, self.position)
        if found:
            self.position = found.end()
        return found is not None

    def skip_blanks(self) -> None:
        self.skip("")

    def expect(self, mark: str) -> None:
        if not self.skip(mark):
            self.fail(f", expected '{mark}'")

    def fail(self, expected: str = "") -> NoReturn:
        rest = self.text[self.position :]
        raise ValueError((f"unexpected '{rest[0]}'" if rest else "it ends too early") + expected)


def _typed(bare: str) -> Any:
    """Bare text as the constant or number it spells, otherwise as text without its escapes."""
    text = re.sub(r"(?<!\\)((?:\\\\)*)[ \t]+$", r"\1", bare.lstrip(" \t"))
    if text.lower() in CONSTANTS:
        return CONSTANTS[text.lower()]
    if INTEGER_TEXT.fullmatch(text):
        return int(text)
    if FLOAT_TEXT.fullmatch(text):
        return float(text)
    return re.sub(ESCAPE, lambda escape: escape[0][1], text)


def _unquote(quoted: str) -> str:
    """The text between the quotes. Backslashes escape only a quote of the same kind and each other before one."""
    mark, text = quoted[0], quoted[1:-1]
    return re.sub(rf"\\+(?={mark}|$)", lambda slashes: slashes[0][: len(slashes[0]) // 2], text)
