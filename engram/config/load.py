"""Settings from a command line, checked as a whole: every problem is reported at once, before torch is loaded."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError

from engram.agent.components.graph import read_graph
from engram.config import names
from engram.config.explain import explain
from engram.config.groups import GROUPS, compose_groups, own_choice, read_yaml
from engram.config.run import RunSettings
from engram.config.words import Word, check_name, split, value
from engram.cores import available_cores
from engram.env.settings import agents_of
from engram.nearest import suggestion
from engram.settings import SettingsError, UserError
from engram.training.checkpoint.listing import list_checkpoints
from engram.training.launch import place
from engram.training.sizes import SIZE_NAMES, of_each_process, resolve_sizes

SETTINGS_FILE = "settings.yaml"


def load(words: Sequence[str]) -> RunSettings:
    """The settings that a command line asks for; raises `SettingsError` with a line for everything wrong with it."""
    problems: list[str] = []
    given: dict[str, Word] = {}
    for text in words:
        with _noted(problems):
            word = split(text)
            given[word.name] = word  # the last one counts
    tree, failed = _choose(given, problems)
    if "run" in given:
        with _noted(problems):
            tree = _as_begun(tree, given)
    usable = _usable(tree, failed)
    for word in given.values():
        if word.name not in GROUPS:
            with _noted(problems):
                check_name(word.name, usable)
                if word.name.partition(".")[0] not in failed:
                    _check_component(word.name, tree)
                    OmegaConf.update(tree, word.name, value(word), merge=True, force_add=True)
    settings = _validate(OmegaConf.to_container(tree), problems)
    if settings is not None:
        _check_sizes(settings, problems)
        if settings.agent is not None:
            problems.extend(read_graph(settings.agent.components).problems.lines)
    if problems or settings is None:
        raise SettingsError(problems)
    return settings


def dump(settings: RunSettings) -> str:
    """Settings as YAML, which `load_run` reads back to the same."""
    content = settings.model_dump(mode="json")
    del content["agent" if settings.agent is None else "py_agent"]
    return OmegaConf.to_yaml(OmegaConf.create({"run": content.pop("run"), **content}))


def load_run(directory: Path) -> RunSettings:
    """The settings that are stored with a run."""
    path = directory / SETTINGS_FILE
    content = read_yaml(path)
    try:
        return RunSettings.model_validate(content)
    except ValidationError as error:
        lines = [f"{path}: {line}" for line in explain(error).values()]
        raise SettingsError(
            [*lines, f"{path} does not fit this version of Engram: correct it, or start another run"]
        ) from None


@contextmanager
def _noted(problems: list[str], where: str = "") -> Iterator[None]:
    try:
        yield
    except UserError as error:
        problems.append(where + str(error))


def _choose(given: dict[str, Word], problems: list[str]) -> tuple[DictConfig, set[str]]:
    """The tree of the chosen groups, and the groups whose choice is wrong (their defaults stand in for them)."""
    chosen: dict[str, str] = {}
    own: dict[str, dict[str, Any]] = {}
    for group in GROUPS:
        if group in given:
            with _noted(problems, f"{group}: "):
                content = own_choice(group, given[group].text)
                chosen[group] = given[group].text
                if content is not None:
                    own[group] = content
    failed = {group for group in GROUPS if group in given and group not in chosen}
    if "agent" in given and "py_agent" in given:
        problems.append("agent: give agent= or py_agent=, not both")
        failed |= {"agent"}
    if failed & {"agent", "py_agent"}:
        failed |= {"agent", "py_agent"}  # which of the two was meant is not known
        chosen = {group: choice for group, choice in chosen.items() if group not in failed}
        own = {group: content for group, content in own.items() if group in chosen}
    return compose_groups(chosen, own), failed


def _as_begun(tree: DictConfig, given: dict[str, Word]) -> DictConfig:
    """What the run that is named began with, if it has a checkpoint to go on from; but groups that are given anew."""
    runs_dir = given["runs_dir"].text if "runs_dir" in given else RunSettings.model_fields["runs_dir"].default
    directory = Path(runs_dir) / given["run"].text
    if not list_checkpoints(directory / "checkpoints"):
        return tree
    stored = OmegaConf.create(dump(load_run(directory)))
    policies = {"agent", "py_agent"}
    anew = {"run", "runs_dir", *given, *(policies if policies & given.keys() else ())}
    parts: dict[Any, Any] = {name: part for name, part in tree.items() if name in anew}
    return OmegaConf.create(parts | {name: part for name, part in stored.items() if name not in anew})


def _usable(tree: DictConfig, failed: set[str]) -> frozenset[str]:
    """The names that can be set with the chosen groups; with a choice that is wrong, those of all its choices."""
    kind = None if "env" in failed else tree.env.get("kind")
    policy = None if failed & {"agent", "py_agent"} else "agent" if "agent" in tree else "py_agent"
    return names.usable(kind if kind in names.environments() else None, policy)


def _check_component(name: str, tree: DictConfig) -> None:
    section, *rest = name.split(".")
    if section == "agent" and rest[0] == "components" and len(rest) > 1:
        components = tree.agent.get("components") or {}
        if rest[1] not in components:
            raise UserError(f"{name}: no such component{suggestion(rest[1], [str(key) for key in components])}")


def _validate(content: Any, problems: list[str]) -> RunSettings | None:
    """The typed settings. Those that are wrong are reported and left out, so that the rest can be checked still."""
    try:
        return RunSettings.model_validate(content)
    except ValidationError as error:
        lines = explain(error)
    problems.extend(lines.values())
    for name in lines:
        _leave_out(content, name.split("."))
    try:
        return RunSettings.model_validate(content)
    except ValidationError:
        return None


def _leave_out(part: dict[str, Any], path: list[str]) -> None:
    """Of a list, all of it."""
    first, *below = path
    if below and isinstance(part.get(first), dict):
        _leave_out(part[first], below)
    else:
        part.pop(first, None)


def _check_sizes(settings: RunSettings, problems: list[str]) -> None:
    if any(problem.startswith(f"{name}:") for problem in problems for name in SIZE_NAMES):
        return  # a size that cannot be read has no neighbours to suggest
    agents = agents_of(settings.env) or 1  # unknown until it is built: what holds for one agent must hold for any
    here = place()
    each = " (of each process)" if here.size > 1 and settings.trainer.scale_batches_by_world_size else ""
    try:
        trainer = of_each_process(settings.trainer, here.size)
    except SettingsError as found:
        problems.extend(found.lines)
        return
    try:
        resolve_sizes(trainer, agents, settings.device, max(1, available_cores() // here.local_size))
    except SettingsError as found:
        problems.extend(line + each for line in found.lines)
