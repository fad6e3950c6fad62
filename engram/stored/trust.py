"""Trust: code named in the settings of a stored run is imported only if this user made the run here, or allows it.

Everything that builds something from the settings of a stored run calls `require_trust` first.

Training records the run under the user's state directory, outside of the run's own, by its real path and with a
hash of the settings that name code. So neither a copied nor an edited run can claim to be the user's.
"""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from engram.settings import UserError
from engram.stored.files import UnreadableError, read_bytes, read_json

MAX_BYTES = 2**24  # of a record and of a Python file
ALWAYS_CODE = ("env.module",)
# Names and paths of runs, and settings whose text is only looked up or shown.
NEVER_CODE = ("run", "runs_dir", "init_from", "wandb", "agent", "env.path", "trainer.kickstart.teacher")

log = logging.getLogger("engram")


class UntrustedCodeError(UserError):
    """A stored run names code that this user has not allowed to run."""


def code_named_in(settings: Mapping[str, Any], unused: Collection[str] = ()) -> list[str]:
    """Every `setting: name` that would import code, except in `unused` sections, from which nothing is built.

    >>> code_named_in({"py_agent": {"name": "my.py:Policy"}, "env": {"kind": "gym", "id": "CartPole-v1"}})
    ['py_agent.name: my.py:Policy']
    """
    texts = (item for section, value in settings.items() if section not in unused for item in _texts(value, section))
    return [f"{name}: {text}" for name, text in texts if _names_code(name, text)]


def require_trust(directory: Path, settings: Mapping[str, Any], trust: bool, unused: Collection[str] = ()) -> None:
    """Raise if the stored settings of a run name code, unless it is this user's own run or `trust` allows it."""
    named = code_named_in(settings, unused)
    if not named or trust or _is_recorded(directory, settings):
        return
    raise UntrustedCodeError(
        f"{directory} names code that opening it would run:\n"
        + "".join(f"  {line}\n" for line in named)
        + "You did not make this run here, or its settings have changed since. Read that code first; "
        "then allow it with --trust (in Python: trust=True)"
    )


def record_own(directory: Path, settings: Mapping[str, Any]) -> None:
    """Remember that this user made a run here, so that its code is trusted as long as its settings do not change."""
    if not code_named_in(settings):
        return
    path = _record_path(directory)
    record = {"directory": str(directory.resolve()), "code": _fingerprint(directory, settings)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(dir=path.parent)  # readable by this user only
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(record, file)
        os.replace(temporary, path)
    except OSError as error:
        log.warning("%s: to open this run again will need --trust, because no record of it can be kept", error)


def _names_code(name: str, text: str) -> bool:
    if name in ALWAYS_CODE:
        return True
    if any(f"{name}.".startswith(f"{start}.") for start in NEVER_CODE):
        return False
    return ":" in text or text.endswith(".py") or (name.startswith("env.kwargs.") and ("/" in text or "\\" in text))


def _texts(value: Any, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield name, str(key)  # a wrapper with arguments is {name: arguments}
            yield from _texts(part, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part, name)


def _is_recorded(directory: Path, settings: Mapping[str, Any]) -> bool:
    try:
        record = read_json(_record_path(directory), MAX_BYTES)
        return record == {"directory": str(directory.resolve()), "code": _fingerprint(directory, settings)}
    except UnreadableError:
        return False


def _record_path(directory: Path) -> Path:
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    name = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()
    return Path(state).expanduser() / "engram" / "runs" / f"{name}.json"


def _fingerprint(directory: Path, settings: Mapping[str, Any]) -> str:
    """A hash of every section that names code, and of the code that those names refer to."""
    sections = {name: part for name, part in settings.items() if code_named_in({name: part})}
    digest = hashlib.sha256(json.dumps(sections, sort_keys=True, default=str).encode())
    for name, text in (item for section, part in sections.items() for item in _texts(part, section)):
        if not _names_code(name, text):
            continue
        path = _source_path(text.rpartition(":")[0] or text)
        if path is not None:
            digest.update(os.fsencode(path))  # a relative name may be a different file in a different folder
            if path.is_relative_to(directory.resolve()):  # it is copied with the run, so its content counts
                digest.update(read_bytes(path, MAX_BYTES))
    return digest.hexdigest()


def _source_path(location: str) -> Path | None:
    """The file or folder of `file.py` or `package.module`; None if it is not in the current folder."""
    if location.endswith(".py"):
        return Path(location).expanduser().resolve()
    folder, _, _ = location.partition(".")
    found = [path for path in (Path(f"{folder}.py"), Path(folder)) if folder and path.exists()]
    return found[0].resolve() if found else None
