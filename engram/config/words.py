"""The words of a command line, `NAME=VALUE` each: which name they set, to what, and what is wrong with them."""

import re
from typing import Any, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from engram.config import names
from engram.config.groups import GROUPS, HYDRA_KEYS, choices, refuse_more_than_data
from engram.nearest import nearest, suggestion
from engram.settings import UserError

NAME = re.compile(r"\w+(\.\w+)*")

FIXED = {"env.kind", "agent.name", "py_agent.name"}  # come with the choice of a group


class Word(NamedTuple):
    """One `NAME=VALUE`, with the value as it was typed."""

    name: str
    text: str


def split(word: str) -> Word:
    """Name and value of a word; raises with the way to write it."""
    name, equals, text = word.partition("=")
    if word.startswith("-"):
        bare = word.lstrip("-").replace("-", "_")
        raise UserError(f"{word}: settings have no dashes: write {bare if '=' in bare else bare + '=VALUE'}")
    if word.startswith(("+", "~")):
        raise UserError(f"{word}: settings are neither added (+) nor deleted (~): write NAME=VALUE")
    if not equals:
        raise UserError(f"{word}: settings are written NAME=VALUE{_meaning(word)}")
    if not NAME.fullmatch(name):
        raise UserError(f"{word}: '{name}' is not the name of a setting: write NAME=VALUE without spaces")
    if not text:
        raise UserError(f"{name}: no value: write {name}=VALUE without spaces")
    return Word(name, text)


def check_name(name: str, usable: frozenset[str]) -> None:
    """Raises for a name that is not among the usable ones, with the nearest that is."""
    if name.split(".")[0] == "hydra":
        raise UserError(f"{name}: Hydra's own settings cannot be changed")
    if _is_hidden(name):
        raise UserError(f"{name}: names of settings do not begin with an underscore")
    section, _, rest = name.partition(".")
    if name in FIXED:
        raise UserError(f"{name}: choose with {section}=NAME")
    if name in usable or names.is_open(name, usable):
        return
    if section == "env" and (kinds := names.having(name)):
        raise UserError(f"{name}: not in the chosen environment, only with env={'|'.join(kinds)}")
    if section in ("agent", "py_agent") and rest:
        other = "agent" if section == "py_agent" else "py_agent"
        if f"{other}.name" in usable and f"{section}.name" not in usable:
            near = f", or write {other}.{rest}" if f"{other}.{rest}" in usable else ""
            raise UserError(f"{name}: this run has no {section}: give {section}=NAME{near}")
    raise UserError(f"{name}: no such option{suggestion(name, usable - FIXED)}")


def value(word: Word) -> Any:
    """The value of a word: text to the letter where the setting is text, otherwise by Hydra's grammar."""
    if "${" in word.text:
        refuse_more_than_data(word.text, word.name)
    if names.is_text(word.name) and word.text[0] not in "'\"" and word.text != "null":
        return word.text
    try:
        override = OverridesParser.create().parse_override(f"{word.name}={word.text}")
    except HydraException as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{word.name}: {word.text} cannot be read ({reason}): put text in quotes") from None
    if override.is_sweep_override():
        raise UserError(f"{word.name}: {word.text} is several values: give one (a list is written [a,b])")
    parsed = override.value()
    refuse_more_than_data(parsed, word.name)
    kinds = names.leaf_types(names.known().get(word.name, Any))
    if isinstance(parsed, bool) and bool not in kinds and (int in kinds or float in kinds):
        raise UserError(f"{word.name}: {word.text} is not a number")
    return parsed


def _is_hidden(name: str) -> bool:
    parts = name.split(".")
    if name.startswith("agent.components."):  # whose own names may be _core_ or _value_
        del parts[2]
    return any(part.startswith("_") for part in parts) or not HYDRA_KEYS.isdisjoint(name.split("."))


def _meaning(word: str) -> str:
    """A guess at what a bare word was to say: the choice of a group, or a setting without its value."""
    for group in GROUPS:
        if word in choices(group):
            return f"; did you mean {group}={word}?"
    name = nearest(word, names.known())
    return f"; did you mean {name}=VALUE?" if name else ""
