"""The state of a run, read from its directory without torch."""

import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from engram.config.load import SETTINGS_FILE, describe_run
from engram.config.run import RunSettings
from engram.config.run_directory import flatten, is_locked
from engram.settings import UserError
from engram.stored.files import MEGABYTE, UnreadableError, read_json
from engram.stored.metrics import MetricsReader, is_number
from engram.training.checkpoint import list_checkpoints

STATE_LIMIT = 64 * MEGABYTE
NOT_COMPARED = {"run", "runs_dir"}
NOT_A_STATE = (
    ArithmeticError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
)  # if Engram did not write the file


class RunState(NamedTuple):
    name: str
    directory: Path
    state: str  # finished, running, stopped, empty (no checkpoint), or unreadable
    steps: int
    total_steps: int | None
    mean_return: float | None  # over the most recent episodes
    age: float  # seconds since anything was written
    settings: RunSettings | None


def read_run(directory: Path) -> RunState:
    """The state of the run in a directory."""
    try:
        settings = describe_run(directory)
    except UserError:
        return RunState(directory.name, directory, "unreadable", 0, None, None, _age(directory), None)
    steps, mean_return = _progress(directory)
    total = settings.trainer.total_timesteps
    if is_locked(directory):
        state = "running"
    elif steps >= total:
        state = "finished"
    else:
        state = "stopped" if list_checkpoints(directory / "checkpoints") else "empty"
    return RunState(directory.name, directory, state, steps, total, mean_return, _age(directory), settings)


def is_finished(settings: RunSettings) -> bool:
    """Whether a run with these settings has a checkpoint of its last step."""
    return _checkpoint_progress(settings.directory)[0] >= settings.trainer.total_timesteps


def list_runs(runs_dir: Path) -> list[RunState]:
    """All runs in a directory, the most recently written first."""
    runs = [read_run(file.parent) for file in runs_dir.glob(f"*/{SETTINGS_FILE}")]
    return sorted(runs, key=lambda run: (run.age, run.name))


def differing_settings(runs: Sequence[RunState]) -> dict[str, dict[str, Any]]:
    """For each run, its settings that differ from the most common value."""
    flat = {run.name: compared_settings(run.settings) for run in runs if run.settings is not None}
    names = dict.fromkeys(name for settings in flat.values() for name in settings)
    found: dict[str, dict[str, Any]] = {name: {} for name in flat}
    for name in names:
        values = {run: json.dumps(settings.get(name)) for run, settings in flat.items()}
        most_common, count = Counter(values.values()).most_common(1)[0]
        if count == len(values):
            continue
        for run, value in values.items():
            if value != most_common or count == 1:
                found[run][name] = flat[run].get(name)
    return found


def _progress(directory: Path) -> tuple[int, float | None]:
    """Steps and mean return, of the last checkpoint or the metrics after it."""
    steps, mean_return = _checkpoint_progress(directory)
    last = last_return = None
    with suppress(UnreadableError):
        for record in MetricsReader(directory).new_records():
            last = record.get("steps")
            if is_number(value := record.get("episode/return")):
                last_return = value
    if is_number(last) and steps < last < math.inf:
        return int(last), mean_return if last_return is None else last_return
    return steps, mean_return


def _checkpoint_progress(directory: Path) -> tuple[int, float | None]:
    for path in reversed(list_checkpoints(directory / "checkpoints")):
        try:
            state = read_json(path / "state.json", STATE_LIMIT, inside=directory)
            returns = state.get("recent_returns") or []
            return int(state["progress"]["steps"]), sum(returns) / len(returns) if returns else None
        except (UnreadableError, *NOT_A_STATE):
            continue
    return 0, None


def _age(directory: Path) -> float:
    times = [path.stat().st_mtime for path in (directory, *directory.glob("*.*")) if path.exists()]
    return max(0.0, time.time() - max(times, default=time.time()))


def compared_settings(settings: RunSettings) -> dict[str, Any]:
    """Settings by dotted name, without the name and directory of the run."""
    flat = flatten(settings.model_dump(mode="json"))
    return {name: value for name, value in flat.items() if name not in NOT_COMPARED}
