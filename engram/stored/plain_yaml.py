"""YAML as plain data, from files that a stranger may have written: no tags that make objects, and bounded in size."""

import re
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from engram.settings import CONTROL
from engram.stored.files import MEGABYTE, UnreadableError, read_text

MAX_BYTES = MEGABYTE
MAX_DEPTH = 50
MAX_VALUES = 20_000  # after aliases are expanded
MAX_DIGITS = 1000  # of a number: hexadecimal ones cannot be shown, and those in base 60 (1:30:00) take quadratic time

_NUMBER = re.compile(r"[-+.]?[0-9][0-9a-fA-FxXo_:.+-]*")

_Base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_NOT_YAML = (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError)


class _Loader(_Base):  # type: ignore[misc, valid-type]
    """The safe loader, with numbers such as 1e-3, dates as text, and duplicate keys as errors."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in rules if tag != _TIMESTAMP]
        for first, rules in _Base.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key.value}", key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else None)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:[0-9][0-9_]*)(?:\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def read_yaml(path: Path, limit: int = MAX_BYTES, inside: Path | None = None) -> Any:
    """The plain data in a YAML file; raises `UnreadableError`."""
    return parse_yaml(read_text(path, limit, inside), str(path))


def parse_yaml(text: str, where: str) -> Any:
    try:
        _check_bounds(text, where)
        content = yaml.load(text, Loader=_Loader)
    except UnreadableError:
        raise
    except _NOT_YAML as error:
        raise UnreadableError(f"{where} is not valid YAML: {' '.join(str(error).split())}") from error
    _require_plain(content, where)
    return content


def _check_bounds(text: str, where: str) -> None:
    """Raise for deep nesting and many values, which loading would not survive. Aliases count as what they repeat."""
    values, sizes = 0, dict[str, int]()
    open_nodes: list[tuple[str | None, int]] = []  # anchor, and number of values before
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise UnreadableError(f"{where}: *{event.anchor} refers to nothing, or to itself")
            values += sizes[event.anchor]
        elif isinstance(event, yaml.CollectionStartEvent):
            values += 1
            open_nodes.append((event.anchor, values))
        elif isinstance(event, yaml.ScalarEvent):
            values += 1
            number = event.implicit[0] or event.tag  # not quoted
            if number and len(event.value) > MAX_DIGITS and _NUMBER.fullmatch(event.value):
                raise UnreadableError(f"{where}: {event.value[:20]}… is a number of more than {MAX_DIGITS} characters")
            if event.anchor:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            if anchor:
                sizes[anchor] = values - before + 1
        if len(open_nodes) > MAX_DEPTH:
            raise UnreadableError(f"{where}: nested more than {MAX_DEPTH} levels deep")
        if values > MAX_VALUES:
            raise UnreadableError(f"{where}: more than {MAX_VALUES:,} values")


def _require_plain(value: Any, where: str) -> None:
    if isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, str | int | float):
                raise UnreadableError(f"{where}: {key!r} is not the name of a value")
            _require_plain(key, where)
            _require_plain(part, where)
    elif isinstance(value, list):
        for part in value:
            _require_plain(part, where)
    elif isinstance(value, str) and not _is_unicode(value):
        raise UnreadableError(f"{where}: {value[:50]!a} is not Unicode")
    elif isinstance(value, str) and CONTROL.search(value):
        raise UnreadableError(f"{where}: {value[:50]!a} holds control characters")
    elif not isinstance(value, str | int | float | None):
        raise UnreadableError(f"{where}: a {type(value).__name__} is not plain data")


def _is_unicode(text: str) -> bool:
    """Whether text has no unpaired surrogates, which escapes can produce and libraries reject."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)
