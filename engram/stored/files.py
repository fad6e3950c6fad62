"""Files that a stranger may have written: reads regular files of bounded size, JSON and YAML as plain data.

Also checks the paths of files to write.
"""

import errno
import io
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from engram.settings import CONTROL, UserError

MEGABYTE = 2**20
MAX_YAML_BYTES = MEGABYTE
MAX_YAML_DEPTH = 50
MAX_YAML_VALUES = 20_000  # after aliases are expanded
MAX_YAML_DIGITS = 1000  # Python refuses to print longer hexadecimal ones; base 60 (1:30:00) takes quadratic time
_YAML_NUMBER = re.compile(r"[-+.]?[0-9][0-9a-fA-FxXo_:.+-]*")
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_YAML_ERRORS = (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError)


class UnreadableError(ValueError):
    """A file that is missing, of a wrong kind, too large or malformed; the message names it and the reason."""


def open_file(path: Path, limit: int, inside: Path | None = None) -> io.BufferedReader:
    """Open a regular file of at most `limit` bytes. `inside`: no link may lead out of this directory."""
    if inside is not None:
        require_inside(path, inside)
    try:
        # O_NONBLOCK: opening a FIFO would wait for a writer.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        raise UnreadableError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    status = os.fstat(handle)
    problem = None
    if not stat.S_ISREG(status.st_mode):
        problem = "not a regular file"
    elif status.st_size > limit:
        problem = f"{status.st_size:,} bytes, expected at most {limit:,}"
    if problem is not None:
        os.close(handle)
        raise UnreadableError(f"{path}: {problem}")
    return os.fdopen(handle, "rb")


def require_inside(path: Path, directory: Path) -> None:
    """Raise if a path leads out of a directory, through links or `..`."""
    try:
        real, root = path.resolve(), directory.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, or a null byte
        raise UnreadableError(f"{path}: {error}") from error
    if not real.is_relative_to(root):
        raise UnreadableError(f"{path}: a link to {real}, outside of {directory}")


def file_in_run(directory: Path, name: str, option: str) -> Path:
    """The path of a file to write in the directory of a run; raises if links lead out of it, or a FIFO is there."""
    path = directory / name
    try:
        require_inside(path, directory)
        if path.exists():
            require_single_file(path)
    except UnreadableError as error:
        raise UserError(f"{error}: name a different file with {option}") from None
    return path


def require_single_file(path: Path) -> None:
    """Raise for a FIFO, because opening it waits for a reader, and for other hard links, which writing would change."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableError(f"{path}: not a regular file")
    if status.st_nlink > 1:
        raise UnreadableError(f"{path} has {status.st_nlink} hard links, expected 1")


def check_writable(path: Path, option: str) -> None:
    """Raise before any work is done if a file cannot be written there."""
    if path.is_dir():
        raise UserError(f"{option}: {path} is a directory: name a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.touch()
            path.unlink()
        elif not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{option}: {path} cannot be written ({reason}): give a different path") from None


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_bytes(path: Path, limit: int, inside: Path | None = None) -> bytes:
    with open_file(path, limit, inside) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            content = file.read(size + 1)  # not `limit`, which would be allocated
            if len(content) > size:  # it grew
                content += file.read(limit + 1 - len(content))
        except OSError as error:
            raise UnreadableError(f"{path}: {error.strerror or error}") from error
    if len(content) > limit:
        raise UnreadableError(f"{path}: more than {limit:,} bytes")
    return content


def read_text(path: Path, limit: int, inside: Path | None = None) -> str:
    try:
        return read_bytes(path, limit, inside).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableError(f"{path}: not text in UTF-8: {error.reason} at byte {error.start}") from error


def read_json(path: Path, limit: int, inside: Path | None = None) -> Any:
    return parse_json(read_bytes(path, limit, inside), str(path))


def has_control_characters(value: Any) -> bool:
    """Whether any text in plain data has characters that would control the terminal."""
    return any(CONTROL.search(text) for text in _texts(value))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)


def parse_json(content: str | bytes, where: str) -> Any:
    try:
        return json.loads(content)
    except RecursionError:
        raise UnreadableError(f"{where}: nested too deeply") from None
    except ValueError as error:  # also numbers of thousands of digits, and bytes that are not UTF-8
        raise UnreadableError(f"{where}: not valid JSON: {error}") from error


_SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _YamlLoader(_SafeLoader):  # type: ignore[misc, valid-type]
    """The safe loader, with numbers such as 1e-3, dates as text, and duplicate keys as errors."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in rules if tag != _TIMESTAMP]
        for first, rules in _SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key.value}", key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else None)
        return super().construct_mapping(node, deep)


_YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:[0-9][0-9_]*)(?:\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def read_yaml(path: Path, inside: Path | None = None) -> Any:
    """The plain data in a YAML file: no tags that make objects. Raises `UnreadableError`."""
    return parse_yaml(read_text(path, MAX_YAML_BYTES, inside), str(path))


def parse_yaml(text: str, where: str) -> Any:
    try:
        _check_yaml_bounds(text, where)
        content = yaml.load(text, Loader=_YamlLoader)
    except UnreadableError:
        raise
    except _YAML_ERRORS as error:
        raise UnreadableError(f"{where} is not valid YAML: {' '.join(str(error).split())}") from error
    _require_plain(content, where)
    return content


def _check_yaml_bounds(text: str, where: str) -> None:
    """Raise for too deep nesting or too many values before they are loaded. An alias counts as what it repeats."""
    values, sizes = 0, dict[str, int]()
    open_nodes: list[tuple[str | None, int]] = []  # anchor, and number of values before
    for event in yaml.parse(text, Loader=_YamlLoader):
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise UnreadableError(f"{where}: *{event.anchor} refers to nothing, or to itself")
            values += sizes[event.anchor]
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, values))
            values += 1
        elif isinstance(event, yaml.ScalarEvent):
            values += 1
            number = event.implicit[0] or event.tag  # plain, or with a tag such as !!int
            if number and len(event.value) > MAX_YAML_DIGITS and _YAML_NUMBER.fullmatch(event.value):
                raise UnreadableError(f"{where}: {event.value[:20]}… is a number of over {MAX_YAML_DIGITS} characters")
            if event.anchor:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            if anchor:
                sizes[anchor] = values - before
        if len(open_nodes) > MAX_YAML_DEPTH:
            raise UnreadableError(f"{where}: nested more than {MAX_YAML_DEPTH} levels deep")
        if values > MAX_YAML_VALUES:
            raise UnreadableError(f"{where}: more than {MAX_YAML_VALUES:,} values")


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
