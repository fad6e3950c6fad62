"""What the user reads when an environment fails while it runs."""

import traceback
from collections.abc import Sequence

from engram.settings import UserError

_FRAMES = 4  # the innermost ones: where the environment failed, not how we called it


class EnvError(UserError):
    """An environment raised, or the process it ran in was lost."""

    exit_code = 1


def describe(environment: str, who: str, doing: str, env_ids: Sequence[range], what: str) -> str:
    """The one form of all messages: where, what was being done to which environments, and what happened."""
    return f"env {environment}: {who} while {doing} {name_ids(env_ids)}: {what}"


def describe_exception(error: Exception) -> str:
    """The exception and the last frames of its traceback. A user error explains itself."""
    if isinstance(error, UserError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    head = "".join(traceback.format_exception_only(error)).strip()
    return "\n".join([head, *(f"  {frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in frames)])


def name_ids(env_ids: Sequence[range]) -> str:
    names = [str(ids.start) if len(ids) == 1 else f"{ids.start}-{ids.stop - 1}" for ids in env_ids if len(ids)]
    plural = "s" if sum(map(len, env_ids)) != 1 else ""
    return f"environment{plural} {', '.join(names)}"
