"""Reads files that a stranger may have written: regular files only, and bounded in size before they are read."""

import errno
import io
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engram.settings import CONTROL, UserError

MEGABYTE = 2**20


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
    """The path of a file to write in the directory of a run; raises if a link there leads out of it."""
    try:
        require_inside(directory / name, directory)
    except UnreadableError as error:
        raise UserError(f"{error}: name a different file with {option}") from None
    return directory / name


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
    """Whether any text in plain data could command the terminal that shows it."""
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
