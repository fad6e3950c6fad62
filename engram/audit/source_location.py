"""Source locations: which file and line of a policy to look at."""

import inspect
import traceback
from functools import lru_cache
from pathlib import Path

from torch import nn

ENGRAM = str(Path(__file__).resolve().parent.parent)


def source_location(policy: nn.Module, *methods: str) -> str:
    """The first of these methods that the policy's own classes define, else the first that they inherit."""
    found = [(name, owner) for name in methods if (owner := _owner(type(policy), name))]
    own = [(name, owner) for name, owner in found if not owner.__module__.startswith("engram.agent")]
    if not found:
        return f"{type(policy).__name__} ({_file_and_line(type(policy))})"
    name, owner = (own or found)[0]
    method = f"{owner.__name__}.{name} ({_file_and_line(inspect.unwrap(vars(owner)[name]))})"
    if owner is type(policy) or type(policy).__module__.startswith("engram.agent"):
        return method
    return f"{type(policy).__name__} ({_file_and_line(type(policy))}), which inherits {method}"


def error_location(error: BaseException) -> str:
    """The innermost line of the policy's own code in an error's traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    audit = str(Path(__file__).resolve().parent)
    theirs = [f for f in frames if not f.filename.startswith(audit) and "site-packages" not in f.filename]
    outside = [f for f in theirs if not f.filename.startswith(ENGRAM)] or theirs
    if not outside:
        return ""
    return f"{outside[-1].name} ({short_path(outside[-1].filename)}:{outside[-1].lineno})"


def _owner(policy: type, name: str) -> type | None:
    return next((base for base in policy.__mro__ if name in vars(base) and base is not nn.Module), None)


def _file_and_line(thing: object) -> str:
    try:
        file, line = _position(thing)
    except (TypeError, OSError):
        return "source not found"
    return f"{short_path(file)}:{line}"


@lru_cache(maxsize=256)  # finding a class parses its whole file
def _position(thing: object) -> tuple[str, int]:
    file = inspect.getsourcefile(thing) or "?"  # type: ignore[arg-type]
    return file, inspect.getsourcelines(thing)[1]  # type: ignore[arg-type]


def short_path(file: str) -> str:
    """A path relative to the working directory, where it is below it."""
    path = Path(file)
    for base in (Path.cwd(), Path(ENGRAM).parent):
        if path.is_relative_to(base):
            return str(path.relative_to(base))
    return str(path)
