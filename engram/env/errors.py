"""What the user reads when code of theirs fails: an environment while it runs, or anything while it is made."""

import importlib
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from engram.settings import UserError

_FRAMES = 4  # the innermost ones: where the user's code failed, not how we called it
_OURS = str(Path(__file__).parent.parent)
_IMPORTING = ("<frozen", str(Path(importlib.__file__).parent))
_FIVE = "step must return observation, reward, terminated, truncated and info (the old Gym had done for two of them)"
_ARGUMENTS = ("positional argument", "keyword argument", "keyword-only argument")


class EnvError(UserError):
    """An environment raised, or the process it ran in was lost."""

    exit_code = 1


def describe(environment: str, who: str, doing: str, env_ids: Sequence[range], what: str) -> str:
    """The one form of all messages: where, what was being done to which environments, and what happened."""
    return f"env {environment}: {who} while {doing} {name_ids(env_ids)}: {what}"


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turns whatever the user's code raises in here into one message, which begins with what could not be done."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # a script may end at once, for want of arguments of its own
        raise UserError(f"{what}: {describe_exception(error)}") from error


def describe_exception(error: Exception | SystemExit) -> str:
    """The exception and the last frames of the user's own code in its traceback. A user error explains itself."""
    if isinstance(error, UserError):
        return str(error)
    frames = _frames(error)
    if isinstance(error, SyntaxError):  # its text says where
        head = f"{type(error).__name__}: {error}"
    else:
        head = "".join(traceback.format_exception_only(error)).strip()
    if frames and "unpack" in str(error) and all(part in (frames[-1].line or "") for part in ("truncat", "step(")):
        head = f"{_FIVE}: {head}"
    return "\n".join([head, *(f"  {frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in frames)])


def concerns_arguments(error: TypeError) -> bool:
    """Whether something was called with other arguments than it takes."""
    return any(text in str(error) for text in _ARGUMENTS)


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Ours only if there are no others, and if they tell more than that we imported or called something."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_IMPORTING)]
    theirs = [frame for frame in frames if not frame.filename.startswith(_OURS)]
    plain = isinstance(error, ImportError | SyntaxError) or (isinstance(error, TypeError) and concerns_arguments(error))
    return (theirs or ([] if plain else frames))[-_FRAMES:]


def name_ids(env_ids: Sequence[range]) -> str:
    names = [str(ids.start) if len(ids) == 1 else f"{ids.start}-{ids.stop - 1}" for ids in env_ids if len(ids)]
    plural = "s" if sum(map(len, env_ids)) != 1 else ""
    return f"environment{plural} {', '.join(names)}"
