"""The directory of a run: locks it, stores the settings in it, and compares them when the run is resumed."""

import os
import stat
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TextIO
from weakref import WeakSet

from engram.config.load import SETTINGS_FILE, describe_run, dump, read_settings
from engram.config.run import RunSettings
from engram.settings import SettingsError, UserError
from engram.stored.files import (
    MEGABYTE,
    UnreadableError,
    open_file,
    require_inside,
    require_single_file,
    sync,
)
from engram.stored.metrics import METRICS_FILE
from engram.stored.plan import PLAN_FILE
from engram.stored.trust import record_own
from engram.training.checkpoint import list_checkpoints

try:
    import fcntl
except ImportError:  # Windows: train without a lock
    fcntl = None  # type: ignore[assignment]

LOCK_FILE = ".lock"
WRITTEN_FILES = (LOCK_FILE, PLAN_FILE, METRICS_FILE, "log.txt", "trace.jsonl")
# These settings may change on resume; none of them affects what is learned.
MAY_CHANGE = (
    "run",
    "runs_dir",
    "device",
    "hooks",
    "wandb",
    "trainer.total_timesteps",
    "trainer.num_workers",
    "trainer.worker_timeout",
    "trainer.worker_restarts",
    "trainer.on_nan",
    "trainer.disk_timeout",
    "trainer.peer_timeout",
    "trainer.checkpoint",
    "trainer.evaluate_interval",
    "trainer.evaluate_episodes",
    "trainer.audit",
    "trainer.replay_error_bound",
    "trainer.gradient_bound",
    "trainer.tensorboard",
    "trainer.trace",
    "trainer.profile",
)

_open_locks: WeakSet[TextIO] = WeakSet()


def prepare_directory(settings: RunSettings, stack: ExitStack | None = None) -> Path:
    """Make the run's directory and store the settings in it; raise if it belongs to another run.

    With a `stack`, the directory stays locked until the stack is closed.
    """
    directory = settings.directory
    new = not directory.exists()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _check_is_a_run(directory)
        _check_links(directory)
        _check_file_types(directory)
        if stack is not None:
            stack.enter_context(lock(directory))
            if new:
                stack.push(partial(_remove_if_empty, directory))
        _check_same_settings(settings, directory)
        _write_settings(settings, directory)
        record_own(directory, read_settings(directory))
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"{directory} is not a directory: choose a different run= or runs_dir=") from None
    except OSError as error:
        raise UserError(not_writable(directory, error)) from None
    return directory


def _remove_if_empty(directory: Path, kind: type[BaseException] | None, *_: Any) -> None:
    """Remove a new directory if a `UserError` stopped the run before it wrote metrics or checkpoints."""
    if kind is None or not issubclass(kind, UserError) or not directory.is_dir():
        return
    files = list(directory.iterdir())
    if all(file.name in (LOCK_FILE, SETTINGS_FILE) or (file.is_file() and not file.stat().st_size) for file in files):
        for file in files:
            file.unlink()
        directory.rmdir()


def restore_directory(settings: RunSettings, stack: ExitStack) -> None:
    """Make the directory, lock and settings of a run again if they were removed while it trains.

    Raises if another process trains in the directory now.
    """
    directory = settings.directory
    directory.mkdir(parents=True, exist_ok=True)
    if not any(_is_open_at(file, directory / LOCK_FILE) for file in list(_open_locks)):
        stack.enter_context(lock(directory))
    if not (directory / SETTINGS_FILE).exists():
        _write_settings(settings, directory)


def not_writable(directory: Path, error: OSError) -> str:
    """The message for a run directory that cannot be written."""
    return f"{directory} cannot be written ({error.strerror or error}): give a writable one with runs_dir="


def differences(stored: RunSettings, settings: RunSettings, origin: str = "when the run began") -> list[str]:
    """One line for each setting that differs from the stored ones and may not change. `origin`: of the stored ones."""
    before, now = (flatten(each.model_dump(mode="json")) for each in (stored, settings))
    if stored.env.kind != settings.env.kind:  # one line instead of one for each setting of both environments
        before, now = (
            {name: value for name, value in flat.items() if not name.startswith("env.")} | {"env": kind}
            for flat, kind in ((before, stored.env.kind), (now, settings.env.kind))
        )
    changed = [name for name in {**now, **before} if before.get(name) != now.get(name) and not _may_change(name)]
    return [f"{name}: {_shown(now.get(name))}, but {_shown(before.get(name))} {origin}" for name in changed]


def lock(directory: Path) -> TextIO:
    """Lock a run's directory until the returned file is closed or the process ends; raise if another process has it."""
    file = (directory / LOCK_FILE).open("a+", encoding="utf-8")
    try:
        _acquire(file, directory)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
    except BaseException:
        file.close()
        raise
    _open_locks.add(file)
    return file


def _is_open_at(file: TextIO, path: Path) -> bool:
    """Whether this open file is the one at the path now."""
    try:
        return not file.closed and os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def is_locked(directory: Path) -> bool:
    """Whether a process trains the run of this directory."""
    if fcntl is None:
        return False
    try:
        with open_file(directory / LOCK_FILE, MEGABYTE) as file:  # never waits, as opening a FIFO would
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (OSError, UnreadableError):  # no lock file, or a file system without locks
        pass
    return False


def _acquire(file: TextIO, directory: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        process = f"process {number}" if (number := file.read().strip()) else "another process"
        raise UserError(
            f"{directory} is being trained by {process}: wait for it, stop it, or choose a different run="
        ) from None
    except OSError:
        pass  # a file system without locks


def _close_inherited_locks() -> None:
    """A forked process must not keep the lock when the process that trains is gone."""
    for file in list(_open_locks):
        file.close()


if fcntl is not None:
    os.register_at_fork(after_in_child=_close_inherited_locks)


def _check_is_a_run(directory: Path) -> None:
    """Raise if the directory holds other files. A run that stopped very early may have left only its lock."""
    others = [file for file in directory.iterdir() if not file.name.startswith((f".{SETTINGS_FILE}", LOCK_FILE))]
    if others and not (directory / SETTINGS_FILE).exists():
        raise UserError(f"{directory} exists and is not a run of Engram's: choose a different run=")


def _check_links(directory: Path) -> None:
    """Raise if training could write outside of the run's directory through a link, or into a FIFO or device.

    Files of checkpoints may have hard links, for example from a backup: they are only replaced, never written into.
    """
    for folder, folders, files in os.walk(directory):
        in_checkpoint = (directory / "checkpoints") in (Path(folder), *Path(folder).parents)
        for path in (Path(folder, name) for name in (*folders, *files)):
            try:
                _check_link(path, directory, hard_links_allowed=in_checkpoint)
            except FileNotFoundError:  # another process may be training here
                continue


def _check_link(path: Path, directory: Path, hard_links_allowed: bool) -> None:
    kind = path.lstat().st_mode
    if stat.S_ISLNK(kind):
        try:
            require_inside(path, directory)
        except UnreadableError as error:
            raise UserError(f"{error}: a run reads and writes only its own directory: remove it") from None
    elif not stat.S_ISDIR(kind) and not stat.S_ISREG(kind):
        raise UserError(f"{path} is neither a file nor a directory: remove it")
    elif stat.S_ISREG(kind) and not hard_links_allowed:
        try:
            require_single_file(path)
        except UnreadableError as error:
            raise UserError(f"{error}: writing would change all of them: replace it with a copy") from None


def _check_file_types(directory: Path) -> None:
    """Raise for a directory where training writes a file, or a file where it needs a directory."""
    for name in WRITTEN_FILES:
        if (directory / name).is_dir():
            raise UserError(f"{directory / name} is a directory, expected a file: remove it")
    checkpoints = directory / "checkpoints"
    if checkpoints.exists() and not checkpoints.is_dir():
        raise UserError(f"{checkpoints} is a file, expected a directory: remove it")


def _write_settings(settings: RunSettings, directory: Path) -> None:
    temporary = directory / f".{SETTINGS_FILE}.{os.getpid()}"
    try:
        temporary.write_text(dump(settings), encoding="utf-8")
        sync(temporary)  # or a power failure may leave an empty file, and checkpoints without settings are useless
        temporary.replace(directory / SETTINGS_FILE)
        sync(directory)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _check_same_settings(settings: RunSettings, directory: Path) -> None:
    if not (directory / SETTINGS_FILE).exists() or not list_checkpoints(directory / "checkpoints"):
        return  # without a checkpoint there is nothing to resume, so the settings may be corrected
    if changed := differences(describe_run(directory), settings):
        fix = "choose a different run=, or give the settings it began with"
        raise SettingsError([*changed, f"{directory} is a different run: {fix}"])


def _may_change(name: str) -> bool:
    return any(f"{name}.".startswith(f"{start}.") for start in MAY_CHANGE)


def _shown(value: Any) -> Any:
    return "null" if value is None else value


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
