"""The YAML groups: what can be chosen in each, and the composition of one choice of each into a tree of values."""

import ast
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from engram.nearest import suggestion
from engram.settings import UserError

HERE = Path(__file__).resolve().parent
GROUPS = {  # name -> what is chosen
    "py_agent": "a policy written in Python",
    "agent": "a policy assembled in YAML, instead of py_agent",
    "env": "the environment",
    "trainer": "how it is trained",
    "wandb": "Weights & Biases",
}
HYDRA_KEYS = {"_target_", "_args_", "_recursive_", "_convert_", "_partial_", "_self_", "_here_", "_global_", "_group_"}


def choices(group: str) -> dict[str, str]:
    """The choices of a group, each with the first comment of its file."""
    files = sorted((HERE / group).glob("*.yaml"))
    return {file.stem: file.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for file in files}


def defaults() -> dict[str, str | None]:
    """The choice of each group where none is given."""
    listed: Any = OmegaConf.to_container(OmegaConf.load(HERE / "config.yaml"))
    return {group: choice for entry in listed["defaults"] if entry != "_self_" for group, choice in entry.items()}


def own_choice(group: str, choice: str) -> dict[str, Any] | None:
    """The tree of a choice of the user's own: a YAML file, or a policy as `file.py:Class` or `module:Class`.

    None when the choice is one of ours; raises when it is neither.
    """
    if choice.endswith((".yaml", ".yml")):
        content = read_yaml(Path(choice))
        return {"name": Path(choice).stem, **content} if group == "agent" else content
    if group == "py_agent" and (":" in choice or choice.endswith(".py")):
        return _own_policy(choice)
    if choice not in (there := choices(group)):
        all_of_them = [*there, "or file.py:Class" if group == "py_agent" else "or a file.yaml"]
        raise UserError(f"no choice '{choice}'{suggestion(choice, there)} ({', '.join(all_of_them)})")
    return None


def compose_groups(chosen: dict[str, str], own: dict[str, dict[str, Any]]) -> DictConfig:
    """The tree of one choice of each group. Nothing in a file is ever called: the tree is only data."""
    chosen = {group: choice for group, choice in chosen.items() if group not in own}
    overrides = [f"{group}={choice}" for group, choice in chosen.items()]
    if "agent" in chosen or "agent" in own:
        overrides.append("~py_agent")
    tree = deepcopy(_composed(tuple(overrides)))
    for group, content in own.items():
        tree[group] = content
    return tree


@cache
def _composed(overrides: tuple[str, ...]) -> DictConfig:
    with initialize_config_dir(str(HERE), job_name="engram", version_base="1.3"):
        tree = compose("config", list(overrides))
    OmegaConf.set_struct(tree, False)
    return tree


def _own_policy(choice: str) -> dict[str, Any]:
    place, _, name = choice.rpartition(":")
    if not place or not name.isidentifier():
        file = place if place.endswith(".py") else choice.rstrip(":")
        raise UserError(f"'{choice}' names no class: write {file}:CLASS{_classes_of(Path(file).expanduser())}")
    if (place.endswith(".py") or "/" in place) and not Path(place).expanduser().is_file():
        raise UserError(f"there is no file {place}")
    return {"name": choice}


def _classes_of(path: Path) -> str:
    """The classes of a file, which is read and not run; nothing where that cannot be."""
    try:
        content = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ""
    names = [part.name for part in content.body if isinstance(part, ast.ClassDef)]
    return f", where CLASS is {' or '.join(names)}" if names else ""


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file as plain data, refused when it is not a mapping or tries to be more than data."""
    try:
        content = OmegaConf.to_container(OmegaConf.load(path))
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    except (YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"{path} is not sound YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold names and values, not a {type(content).__name__}")
    refuse_more_than_data(content, str(path))
    return {str(key): value for key, value in content.items()}


def refuse_more_than_data(value: Any, where: str) -> None:
    """Raises for Hydra's instructions and for references: settings are values and nothing else."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key in HYDRA_KEYS:
                raise UserError(f"{where}: the key {key} is an instruction of Hydra's, which Engram does not follow")
            refuse_more_than_data(part, f"{where}.{key}")
    elif isinstance(value, list):
        for part in value:
            refuse_more_than_data(part, where)
    elif isinstance(value, str) and "${" in value:
        raise UserError(f"{where}: references such as {value} are not supported: write the value itself")
