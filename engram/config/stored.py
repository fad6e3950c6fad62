"""The settings that are kept with a run: written before it starts, and compared when it is started again."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from engram.config.load import SETTINGS_FILE, dump, load_run
from engram.config.lock import LOCK_FILE, lock
from engram.config.run import RunSettings
from engram.settings import SettingsError, UserError
from engram.training.checkpoint.listing import list_checkpoints

# What may change when a run is continued: how long, where and how it is watched, not what is learned.
FREE = (
    "runs_dir",
    "device",
    "wandb",
    "trainer.total_timesteps",
    "trainer.num_workers",
    "trainer.worker_timeout",
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


def keep(settings: RunSettings, held: ExitStack | None = None) -> Path:
    """The run's directory, made if need be, with the settings in it; raises when it belongs to another run.

    `held` gets the run's lock, which is taken before anything is compared or written.
    """
    directory = settings.directory
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _check_is_a_run(directory)
        if held is not None:
            held.enter_context(lock(directory))
        _check_same(settings, directory)
        aside = directory / f".{SETTINGS_FILE}.{os.getpid()}"
        aside.write_text(dump(settings), encoding="utf-8")
        aside.replace(directory / SETTINGS_FILE)
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"{directory} is not a directory: give another run= or runs_dir=") from None
    except OSError as error:
        raise UserError(unwritable(directory, error)) from None
    return directory


def unwritable(directory: Path, error: OSError) -> str:
    """What to say when the run's directory cannot be written."""
    return f"{directory} cannot be written ({error.strerror or error}): give a writable one with runs_dir="


def differences(stored: RunSettings, settings: RunSettings) -> list[str]:
    """A line for every setting that is not as it was when the run began."""
    before, now = (_flat(each.model_dump(mode="json")) for each in (stored, settings))
    if stored.env.kind != settings.env.kind:  # what other environments have is not worth listing
        before, now = (
            {name: value for name, value in flat.items() if not name.startswith("env.")} | {"env": kind}
            for flat, kind in ((before, stored.env.kind), (now, settings.env.kind))
        )
    changed = [name for name in {**now, **before} if before.get(name) != now.get(name) and not _is_free(name)]
    return [f"{name}: {_shown(now.get(name))}, but {_shown(before.get(name))} when the run began" for name in changed]


def _is_free(name: str) -> bool:
    return any(f"{name}.".startswith(f"{start}.") for start in FREE)


def _shown(value: Any) -> Any:
    return "null" if value is None else value


def _check_is_a_run(directory: Path) -> None:
    """Or is to become one: a run that was stopped very early leaves its lock and settings half written."""
    others = [file for file in directory.iterdir() if not file.name.startswith((f".{SETTINGS_FILE}", LOCK_FILE))]
    if others and not (directory / SETTINGS_FILE).exists():
        raise UserError(f"{directory} exists and is not a run of Engram's: give another run=")


def _check_same(settings: RunSettings, directory: Path) -> None:
    if not (directory / SETTINGS_FILE).exists() or not list_checkpoints(directory / "checkpoints"):
        return  # it never got anywhere: most likely its settings are being corrected
    if changed := differences(load_run(directory), settings):
        raise SettingsError([*changed, f"{directory} is another run: give another run=, or the settings it began with"])


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
