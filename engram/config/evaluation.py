"""Settings of `engram eval`, `replay`, `memory` and `export`, which use the policy of a run.

They are checked before torch is imported.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

from omegaconf import OmegaConf
from pydantic import Field, ValidationError

from engram.config.groups import read_choice
from engram.config.load import SETTINGS_FILE, load_run
from engram.config.overrides import NOT_PARSED, Override, check_name, from_python, parse_override, set_value
from engram.config.run import RunSettings, usable_settings
from engram.config.validation_errors import describe_errors
from engram.nearest import suggestion
from engram.settings import Settings, SettingsError, UserError
from engram.training.checkpoint.files import verify_checkpoint
from engram.training.checkpoint.loading import checkpoint_of
from engram.training.settings import EVALUATION_SEED, Positive, Size, Workers


class PolicyOfRun(Settings):
    """The policy of a run, at one of its checkpoints."""

    run: str
    runs_dir: str = "runs"
    checkpoint: str = "latest"  # or best, or the path of one


class PlaySettings(PolicyOfRun):
    """The agent that plays, and how it acts."""

    greedy: bool = False
    seed: Annotated[int, Field(ge=0, lt=2**32)] = EVALUATION_SEED
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"


class EvalSettings(PlaySettings):
    """Settings of `engram eval`."""

    episodes: Positive = 100
    num_envs: Size = 32
    num_workers: Workers = 0


class ReplaySettings(PlaySettings):
    """Settings of `engram replay`."""

    episodes: Positive | None = None  # null: enough for 64 steps
    max_steps: Positive = 1000


class MemorySettings(PlaySettings):
    """Settings of `engram memory`."""

    episodes: Positive = 128


Request = TypeVar("Request", bound=PolicyOfRun)


class RunRequest(NamedTuple, Generic[Request]):
    """A run, and what to do with its policy."""

    directory: Path
    settings: Request
    run: RunSettings  # as stored, with the requested changes of the environment


def load_request(
    arguments: Sequence[str], kind: type[Request], trust: bool = False, settings: Mapping[str, Any] | None = None
) -> RunRequest[Request]:
    """The request of a command line, or of Python; raises `UserError` with everything that is wrong with it.

    The checkpoint is verified too, because loading it must wait for torch.
    """
    given = [*map(parse_override, _with_run_named(arguments)), *from_python(settings or {})]
    overrides = {override.name: override for override in given}  # the last one counts
    env_overrides, values = [], {}
    for name, override in overrides.items():
        if name.partition(".")[0] == "env":
            env_overrides.append(override)
        else:
            values[name] = override.text if override.value is NOT_PARSED else override.value
    request = _validate(values, kind)
    directory = find_run(request.run, Path(request.runs_dir))
    unused = ("env", "trainer") if "env" in overrides else ("trainer",)
    run = with_env(load_run(directory, trust, unused), env_overrides)
    checkpoint_of(directory, request.checkpoint, verify_checkpoint)
    return RunRequest(directory, request, run)


def _with_run_named(arguments: Sequence[str]) -> list[str]:
    """The arguments with `run=NAME` instead of a bare NAME."""
    named = [each if "=" in each or each.startswith("-") else f"run={each}" for each in arguments]
    runs = [each.removeprefix("run=") for each in named if each.startswith("run=")]
    if named != [*arguments] and len(runs) > 1:
        raise UserError(f"run: {' and '.join(runs)} are given: name one run")
    return named


def find_run(name: str, runs_dir: Path) -> Path:
    """The directory of a run, by its name or its path; raises with the nearest name."""
    for directory in (runs_dir / name, Path(name)):
        if os.path.isfile(directory / SETTINGS_FILE):
            return directory
    runs = sorted(file.parent.name for file in runs_dir.glob(f"*/{SETTINGS_FILE}"))
    if not runs:
        raise UserError(f"run: there are no runs in {runs_dir}: train one, or set runs_dir=")
    raise UserError(f"run: no run '{name}' in {runs_dir}{suggestion(name, runs) or _listed(runs)}")


def stored_path(reference: str) -> Path | None:
    """The directory of a run or checkpoint, given by its path or by its name below `runs`."""
    return next((path for path in (Path(reference), Path("runs") / reference) if os.path.isdir(path)), None)


def enclosing_run(path: Path) -> Path | None:
    """The directory of the run at this path, or of the run that the checkpoint at this path belongs to."""
    return next((parent for parent in (path, *path.resolve().parents) if (parent / SETTINGS_FILE).is_file()), None)


def with_env(run: RunSettings, overrides: Sequence[Override]) -> RunSettings:
    """The settings of a run with a different environment (`env=NAME`), or with changes to its own environment."""
    if not overrides:
        return run
    content = run.model_dump(mode="json", exclude={"agent" if run.agent is None else "py_agent"})
    for override in overrides:
        if override.name == "env":
            content["env"] = _chosen_env(override.text)
    usable, problems = usable_settings(content["env"].get("kind"), None), []
    tree = OmegaConf.create({"env": content["env"]})
    for override in overrides:
        if override.name != "env":
            try:
                check_name(override.name, usable)
                set_value(tree, override)
            except UserError as error:
                problems.append(str(error))
    try:
        changed = RunSettings.model_validate({**content, "env": OmegaConf.to_container(tree)["env"]})  # type: ignore
    except ValidationError as error:
        problems += describe_errors(error).values()
    if problems:
        raise SettingsError(problems)
    return changed


def _validate(given: dict[str, Any], kind: type[Request]) -> Request:
    known = kind.model_fields
    problems = [f"{name}: no such option{suggestion(name, [*known, 'env'])}" for name in given if name not in known]
    try:
        settings = kind.model_validate({name: text for name, text in given.items() if name in known})
    except ValidationError as error:
        problems += describe_errors(error).values()
    if problems:
        raise SettingsError(problems)
    return settings


def _chosen_env(choice: str) -> dict[str, Any]:
    try:
        return read_choice("env", choice)
    except UserError as error:
        raise UserError(f"env: {error}") from None


def _listed(runs: Sequence[str]) -> str:
    return f"; there are {', '.join(runs[:5])}{', …' if len(runs) > 5 else ''}"
