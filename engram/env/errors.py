"""Error messages for failing user code: an environment that raises while running, or anything that cannot be built."""

import importlib
import logging
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engram.settings import UserError

_FRAMES = 4  # innermost frames shown: where the user's code failed, not how it was called
_MAX_TEXT = 2000  # characters of an exception's text
_OURS = str(Path(__file__).parent.parent)
_TORCH = str(Path("site-packages", "torch"))  # calls a layer through several frames of its own
_IMPORTING = ("<frozen", str(Path(importlib.__file__).parent))
WRONG_STEP = (
    "step must return observation, reward, terminated, truncated and info (the old Gym had done for two of them)"
)
_RESET = "reset must take a seed and options, as in reset(self, *, seed=None, options=None)"
_ARGUMENTS = ("positional argument", "keyword argument", "keyword-only argument")

log = logging.getLogger("engram")


class EnvError(UserError):
    """An environment raised, or its process died."""

    exit_code = 1


class NotFiniteError(UserError):
    """An environment gave a number that is NaN, infinite or too large."""


def describe(environment: str, subject: str, verb: str, env_ids: Sequence[range], what: str) -> str:
    """The common form of all messages: where, during which operation on which environments, and what happened."""
    return f"env {environment}: {subject} while {verb} {name_ids(env_ids)}: {what}"


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turns any exception of the user's code in this context into one UserError that begins with `what`."""
    try:
        yield
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:  # an imported script may exit, e.g. because it lacks arguments
        raise UserError(f"{what}: {describe_exception(error)}") from error


def close_all(environments: Iterable[Any]) -> None:
    """Close each of them. One that fails is only a warning: nothing depends on it any more."""
    for env in environments:
        try:
            env.close()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            log.warning("an environment could not be closed: %s", describe_exception(error))


def describe_exception(error: BaseException) -> str:
    """The exception and the last frames of the user's own code. A UserError needs no traceback."""
    if isinstance(error, UserError):
        return str(error)
    frames = _frames(error)
    if isinstance(error, SyntaxError):  # its text has the location
        head = f"{type(error).__name__}: {error}"
    else:
        head = _printable("".join(traceback.format_exception_only(error)).strip())
    if is_wrong_step(error):
        head = f"{WRONG_STEP}: {head}"
    if isinstance(error, TypeError) and concerns_arguments(error) and ".reset()" in str(error):
        head = f"{_RESET}: {head}"
    return "\n".join([head, *(f"  {frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in frames)])


def is_wrong_step(error: BaseException | None) -> bool:
    """Whether `step` did not return five values. A restart would not change that."""
    if not isinstance(error, TypeError | ValueError) or "unpack" not in str(error):
        return False
    frames = _frames(error)
    return bool(frames) and all(part in (frames[-1].line or "") for part in ("truncat", "step("))


def concerns_arguments(error: TypeError) -> bool:
    """Whether a call had wrong arguments."""
    return any(text in str(error) for text in _ARGUMENTS)


def _printable(text: str) -> str:
    """Shortens a long text, and escapes control characters and unpaired surrogates, which no terminal may get."""
    short = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} … ({len(text):,} characters)"
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in short)


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The user's frames. Without any, Engram's own, unless an import or call failed: then the message is enough."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_IMPORTING)]
    not_ours = [frame for frame in frames if not frame.filename.startswith(_OURS)]
    user_frames = [frame for frame in not_ours if _TORCH not in frame.filename] or not_ours
    self_explanatory = isinstance(error, ImportError | SyntaxError) or (
        isinstance(error, TypeError) and concerns_arguments(error)
    )
    return (user_frames or ([] if self_explanatory else frames))[-_FRAMES:]


def name_ids(env_ids: Sequence[range]) -> str:
    names = [str(ids.start) if len(ids) == 1 else f"{ids.start}-{ids.stop - 1}" for ids in env_ids if len(ids)]
    plural = "s" if sum(map(len, env_ids)) != 1 else ""
    return f"environment{plural} {', '.join(names)}"
