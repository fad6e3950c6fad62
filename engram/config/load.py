"""Loads settings from a command line or a run, and reports every mistake at once, before torch is imported."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError

from engram.agent.components.graph import read_graph
from engram.config.groups import DEFAULTS, GROUPS, read_choice, read_recipe, read_yaml
from engram.config.overrides import Override, check_name, from_python, parse_override, set_value
from engram.config.run import RunSettings, environment_settings, usable_settings
from engram.config.validation_errors import describe_errors
from engram.cores import available_cores
from engram.env.settings import agents_of
from engram.nearest import suggestion
from engram.settings import SettingsError, UserError
from engram.stored.trust import UntrustedCodeError, require_trust
from engram.training.checkpoint import list_checkpoints
from engram.training.launch import rank_info
from engram.training.sizes import SIZE_NAMES, of_one_rank, resolve_sizes

SETTINGS_FILE = "settings.yaml"
POLICY_GROUPS = {"agent", "py_agent"}


def load(arguments: Sequence[str], trust: bool = False, settings: Mapping[str, Any] | None = None) -> RunSettings:
    """The settings of a command line, or of Python; raises `SettingsError` with one line for each mistake.

    `trust`: allow code named in the stored settings of a run, even if this user did not make the run here.

    >>> load(["env=recall", "env.delay=20"]).env.delay
    20
    """
    problems: list[str] = []
    overrides: dict[str, Override] = {}
    for argument in arguments:
        with _collect(problems):
            override = parse_override(argument)
            overrides[override.name] = override  # the last one counts
    for name, value in (settings or {}).items():
        with _collect(problems):
            overrides |= {override.name: override for override in from_python({name: value})}
    return _compose(overrides, problems, trust)


def _compose(overrides: dict[str, Override], problems: list[str], trust: bool) -> RunSettings:
    tree, failed = _choose_groups(overrides, problems)
    if "run" in overrides:
        with _collect(problems):
            tree = _with_stored_settings(tree, overrides, trust)
    usable = _usable_names(tree, failed)
    for override in overrides.values():
        if override.name not in GROUPS:
            with _collect(problems):
                check_name(override.name, usable)
                if override.name.partition(".")[0] not in failed:
                    _check_component(override.name, tree)
                    set_value(tree, override)
    settings = _validate(OmegaConf.to_container(tree), problems)
    if settings is not None:
        _check_sizes(settings, problems)
        if settings.agent is not None:
            problems.extend(read_graph(settings.agent.components).problems.lines)
    if problems or settings is None:
        raise SettingsError(problems)
    return settings


def dump(settings: RunSettings) -> str:
    """Settings as YAML; `load_run` reads the same settings back."""
    content = settings.model_dump(mode="json")
    del content["agent" if settings.agent is None else "py_agent"]
    return OmegaConf.to_yaml(OmegaConf.create({"run": content.pop("run"), **content}))


def load_run(directory: Path, trust: bool = False, unused: Collection[str] = ()) -> RunSettings:
    """The settings stored with a run, to build something from; raises if they name code that is not trusted.

    `unused`: sections, such as `env`, from which nothing is built.
    """
    content = read_settings(directory)
    require_trust(directory, content, trust, unused)
    return validate_stored(content, directory / SETTINGS_FILE)


def describe_run(directory: Path) -> RunSettings:
    """The settings stored with a run, to show or compare. Build nothing from them: their code may be a stranger's."""
    return validate_stored(read_settings(directory), directory / SETTINGS_FILE)


def validate_stored(content: dict[str, Any], path: Path) -> RunSettings:
    """The typed settings of a stored run; `path` is named in errors."""
    try:
        return RunSettings.model_validate(content)
    except ValidationError as error:
        lines = [f"{path}: {line}" for line in describe_errors(error).values()]
    except UnicodeEncodeError as error:
        lines = [f"{path}: {error}"]
    raise SettingsError([*lines, f"{path} does not fit this version of Engram: correct it, or start a new run"])


def read_settings(directory: Path) -> dict[str, Any]:
    """The settings stored with a run, as plain data."""
    return read_yaml(directory / SETTINGS_FILE, inside=directory)


@contextmanager
def _collect(problems: list[str], prefix: str = "") -> Iterator[None]:
    try:
        yield
    except UntrustedCodeError:
        raise
    except UserError as error:
        problems.append(prefix + str(error))


def _choose_groups(overrides: dict[str, Override], problems: list[str]) -> tuple[DictConfig, set[str]]:
    """The settings of the chosen groups, and the groups with a wrong choice, which get their default."""
    tree = {group: read_choice(group, choice) for group, choice in DEFAULTS.items()}
    chosen = [group for group in GROUPS if group in overrides and group != "task"]
    failed = set(chosen)
    for group in chosen:
        with _collect(problems, f"{group}: "):
            tree[group] = read_choice(group, overrides[group].text)
            failed.remove(group)
    if "agent" in chosen and "py_agent" in chosen:
        problems.append("agent: give agent= or py_agent=, not both")
        failed.add("agent")
    if failed & POLICY_GROUPS:
        failed |= POLICY_GROUPS  # it is not known which of the two was meant
        tree.pop("agent", None)
        tree["py_agent"] = read_choice("py_agent", DEFAULTS["py_agent"])
    elif "agent" in chosen:
        del tree["py_agent"]
    settings = OmegaConf.create(tree)
    if "task" in overrides:
        failed.add("env")  # what it can set is unknown until the recipe has been read
        with _collect(problems, "task: "):
            settings = _with_recipe(settings, overrides["task"].text, chosen)
            failed.remove("env")
    return settings, failed


def _with_recipe(tree: DictConfig, task: str, chosen: Sequence[str]) -> DictConfig:
    """The settings with a recipe's environment, and its other settings on top of the chosen groups."""
    recipe = read_recipe(task)
    if "env" in chosen:
        raise UserError("a recipe has its environment: give task= or env=, not both (env.SETTING=VALUE changes it)")
    if "agent" in chosen and recipe.py_agent:
        raise UserError(f"{task} sets py_agent ({', '.join(recipe.py_agent)}): it cannot be combined with agent=")
    given = OmegaConf.create(recipe.settings())
    return OmegaConf.merge({**tree, "env": {}}, given, {"task": task})  # type: ignore[return-value]


def _with_stored_settings(tree: DictConfig, overrides: dict[str, Override], trust: bool) -> DictConfig:
    """If the run has a checkpoint to resume from, its stored settings; groups that are given again replace them."""
    runs_dir = overrides["runs_dir"].text if "runs_dir" in overrides else RunSettings.model_fields["runs_dir"].default
    directory = Path(runs_dir) / overrides["run"].text
    if not os.path.isdir(directory) or not list_checkpoints(directory / "checkpoints"):  # isdir accepts any name
        return tree
    given = {"run", "runs_dir", *overrides, *(POLICY_GROUPS if POLICY_GROUPS & overrides.keys() else ())}
    stored = OmegaConf.create(dump(load_run(directory, trust, unused=given)))
    parts: dict[Any, Any] = {name: part for name, part in tree.items() if name in given}
    return OmegaConf.create(parts | {name: part for name, part in stored.items() if name not in given})


def _usable_names(tree: DictConfig, failed: set[str]) -> frozenset[str]:
    """The names that can be set with the chosen groups; for a wrong choice, the names of all its alternatives."""
    kind = None if "env" in failed else tree.env.get("kind")
    policy: str | None = "agent" if "agent" in tree else "py_agent"
    if failed & POLICY_GROUPS:
        policy = None
    return usable_settings(kind if kind in environment_settings() else None, policy)


def _check_component(name: str, tree: DictConfig) -> None:
    section, *rest = name.split(".")
    if section == "agent" and rest[0] == "components" and len(rest) > 1:
        components = tree.agent.get("components") or {}
        if rest[1] not in components:
            raise UserError(f"{name}: no such component{suggestion(rest[1], [str(key) for key in components])}")


def _validate(content: Any, problems: list[str]) -> RunSettings | None:
    """The typed settings. Wrong ones are reported and removed, so that the rest can still be checked."""
    try:
        return RunSettings.model_validate(content)
    except ValidationError as error:
        lines = describe_errors(error)
    problems.extend(lines.values())
    for name in lines:
        _remove(content, name.split("."))
    try:
        return RunSettings.model_validate(content)
    except ValidationError:
        return None


def _remove(part: dict[str, Any], path: list[str]) -> None:
    """Remove a setting; for an item of a list, the whole list."""
    first, *rest = path
    if rest and isinstance(part.get(first), dict):
        _remove(part[first], rest)
    else:
        part.pop(first, None)


def _check_sizes(settings: RunSettings, problems: list[str]) -> None:
    if any(problem.startswith(f"{name}:") for problem in problems for name in SIZE_NAMES):
        return  # one size is wrong already: errors that follow from it would not help
    agents = agents_of(settings.env) or 1  # unknown until it is built: sizes must at least work for one agent
    rank = rank_info()
    suffix = " (of each rank)" if rank.size > 1 and settings.trainer.scale_batches_by_world_size else ""
    try:
        trainer = of_one_rank(settings.trainer, rank.size)
    except SettingsError as error:
        problems.extend(error.lines)
        return
    try:
        resolve_sizes(trainer, agents, settings.device, max(1, available_cores() // rank.local_size))
    except SettingsError as error:
        problems.extend(line + suffix for line in error.lines)
