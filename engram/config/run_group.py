"""A group of runs: settings with several values on a command line, `seed=1,2,3`, one run for each combination."""

import re
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from engram.config.load import load
from engram.config.run import RunSettings
from engram.settings import SettingsError, UserError

OPENING, CLOSING, QUOTES = "[{(", "]})", "'\""
LONGEST_NAME = 100


class Member(NamedTuple):
    """One run of a group."""

    settings: RunSettings
    words: list[str]  # its command line
    values: dict[str, str]  # its values of the settings that have several


def expand(words: Sequence[str], trust: bool = False) -> list[Member] | None:
    """The runs of a command line, or None if no setting has several values. Raises with all mistakes of all of them."""
    texts = {word.partition("=")[0]: word.partition("=")[2] for word in words}  # the last one counts
    several = {name: values for name, text in texts.items() if len(values := split_values(text)) > 1}
    if not several:
        return None
    for name, values in several.items():
        if not all(values):
            raise UserError(f"{name}: {texts[name]} has an empty value: write {name}=A,B without spaces")
    if "run" in several:
        raise UserError("run: give a group one name: each of its runs adds its own values to it")
    fixed = [word for word in words if word.partition("=")[0] not in several]
    combinations = [dict(zip(several, values, strict=True)) for values in product(*several.values())]
    return _members(fixed, combinations, trust)


def split_values(text: str) -> list[str]:
    """Split at commas outside of brackets and quotes; a backslash escapes a comma. Repeated values count once.

    >>> split_values("1,2,[3,4],'5,6'")
    ['1', '2', '[3,4]', "'5,6'"]
    """
    parts, depth, quote, escaped = [""], 0, "", False
    for character in text:
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif quote:
            quote = "" if character == quote else quote
        elif character in QUOTES:
            quote = character
        elif character in OPENING or character in CLOSING:
            depth += 1 if character in OPENING else -1
        elif character == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += character
    return list(dict.fromkeys(part.strip() for part in parts))


def _members(fixed: list[str], combinations: list[dict[str, str]], trust: bool) -> list[Member]:
    members, problems = [], []
    names: set[str] = set()
    for values in combinations:
        words = [*fixed, *(f"{name}={value}" for name, value in values.items())]
        try:
            run = _member_name(load(words, trust).run, values, names)
            names.add(run)
            words = [*(word for word in words if not word.startswith("run=")), f"run={run}"]
            members.append(Member(load(words, trust), words, values))
        except UserError as error:
            problems += str(error).splitlines()
    if problems:
        raise SettingsError(list(dict.fromkeys(problems)))
    return members


def _member_name(base: str, values: dict[str, str], taken: set[str]) -> str:
    """`fast_tmaze_seed-1`: the last part of each setting's name and its value, in at most 100 characters."""
    short = {name: name.rpartition(".")[2] for name in values}
    if len(set(short.values())) < len(short):
        short = {name: name for name in values}
    labels = [f"{short[name]}-{re.sub(r'[^A-Za-z0-9._+-]+', '-', value).strip('-')}" for name, value in values.items()]
    name = "_".join([base, *labels])[:LONGEST_NAME]
    number = 2
    while name in taken:
        suffix = f"_{number}"
        name = name[: LONGEST_NAME - len(suffix)] + suffix
        number += 1
    return name
