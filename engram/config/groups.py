"""Config groups: each group (`env=`, `py_agent=`, …) is a folder of YAML files, of which a run chooses one.

A file of the group `task` is a recipe: an environment, a budget, settings and a published score.
"""

import ast
import re
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from engram.nearest import suggestion
from engram.settings import Settings, UserError
from engram.stored.files import UnreadableError
from engram.stored.files import read_yaml as read_plain_yaml

CONFIG_FOLDER = Path(__file__).resolve().parent
GROUPS = {  # name -> what is chosen
    "py_agent": "a policy written in Python",
    "agent": "a policy assembled in YAML, instead of py_agent",
    "env": "the environment",
    "task": "a recipe, instead of env: the environment, budget and settings of a benchmark task",
    "trainer": "how it is trained",
    "wandb": "Weights & Biases",
}
USER_CODE: dict[str, dict[str, Any]] = {"py_agent": {}, "env": {"kind": "python"}}  # settings of a choice file.py:NAME
GYMNASIUM_ID = re.compile(r"([\w.]+:)?([\w.-]+/)?[\w.-]+-v\d+")
RECIPE_SECTIONS = ("py_agent", "trainer")  # may hold settings that differ from the defaults
DEFAULTS = {"py_agent": "fast", "env": "tmaze", "trainer": "default", "wandb": "off"}


def choices(group: str) -> dict[str, str]:
    """The choices of a group, each with the first comment of its file."""
    folder = CONFIG_FOLDER / group
    files = {file.relative_to(folder).with_suffix("").as_posix(): file for file in folder.rglob("*.yaml")}
    ordered = sorted(files.items(), key=lambda item: re.sub(r"\d+", lambda digits: digits[0].zfill(9), item[0]))
    return {name: file.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for name, file in ordered}


def read_choice(group: str, choice: str) -> dict[str, Any]:
    """The settings of a choice: a name, a YAML file, code as `file.py:NAME` or `module:NAME`, a Gymnasium id."""
    if choice.endswith((".yaml", ".yml")):
        content = read_yaml(Path(choice))
        return {"name": Path(choice).stem, **content} if group == "agent" else content
    if group == "env" and GYMNASIUM_ID.fullmatch(choice):
        return {**_shipped("env", "gym"), "id": choice}
    if group in USER_CODE and (":" in choice or choice.endswith(".py")):
        return {**USER_CODE[group], "name": _checked_reference(choice)}
    if choice not in (known := choices(group)):
        other_forms = {"py_agent": "or file.py:Class", "env": "a Gymnasium id such as CartPole-v1, or file.py:Class"}
        listed = [*known, other_forms.get(group, "or a file.yaml")]
        raise UserError(f"no choice '{choice}'{suggestion(choice, known)} ({', '.join(listed)})")
    return deepcopy(_shipped(group, choice))


@cache
def _shipped(group: str, choice: str) -> dict[str, Any]:
    return read_yaml(CONFIG_FOLDER / group / f"{choice}.yaml")


def _checked_reference(choice: str) -> str:
    """`file.py:NAME` or `module:NAME`. A name with `<` was defined inside a function: only this process can find it."""
    module, _, name = choice.rpartition(":")
    if not module or not (name.replace(".", "_").isidentifier() or "<" in name):
        file = module if module.endswith(".py") else choice.rstrip(":")
        raise UserError(f"'{choice}' names no class: write {file}:CLASS{_classes_in(Path(file).expanduser())}")
    if (module.endswith(".py") or "/" in module) and not Path(module).expanduser().is_file():
        raise UserError(f"there is no file {module}")
    return choice


def _classes_in(path: Path) -> str:
    """The classes of a Python file, found without running it; empty if it cannot be parsed."""
    try:
        content = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ""
    names = [part.name for part in content.body if isinstance(part, ast.ClassDef)]
    return f", where CLASS is {' or '.join(names)}" if names else ""


def read_yaml(path: Path, inside: Path | None = None) -> dict[str, Any]:
    """A YAML file that holds a mapping of plain data; anything else raises `UserError`."""
    if not path.exists():
        raise UserError(f"there is no file {path}")
    try:
        content = read_plain_yaml(path, inside)
    except UnreadableError as error:
        raise UserError(str(error)) from None
    if content is not None and not isinstance(content, dict):
        raise UserError(f"{path} must hold names and values, not a {type(content).__name__}")
    require_plain_data(content, str(path))
    return {str(key): value for key, value in (content or {}).items()}


def require_plain_data(value: Any, where: str) -> None:
    """Raise for `${references}` and for Hydra's `_target_`, which would name code to run."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key == "_target_":
                raise UserError(f"{where}: the key _target_ is not supported: settings cannot run code")
            require_plain_data(part, f"{where}.{key}")
    elif isinstance(value, list):
        for part in value:
            require_plain_data(part, where)
    elif isinstance(value, str) and "${" in value:
        raise UserError(f"{where}: references such as {value} are not supported: write the value itself")


class Published(Settings):
    """A published score to compare with."""

    score: float
    steps: int | None = None  # after which it was reached
    by: str  # who or what reached it
    source: str  # where it was published


class Recipe(Settings):
    """The environment, its budget and the settings that differ from the defaults."""

    env: dict[str, Any]
    trainer: dict[str, Any] = {}
    py_agent: dict[str, Any] = {}
    published: Published | None = None
    solved: float | None = None  # return that counts as solved; null: the published score
    title: str = Field(default="", exclude=True)  # the first comment of the file

    @property
    def goal(self) -> float | None:
        """The return to reach: steps and seconds are counted until then."""
        return self.published.score if self.solved is None and self.published else self.solved

    def settings(self) -> dict[str, dict[str, Any]]:
        """The sections of a run's settings that this recipe gives."""
        given = {name: getattr(self, name) for name in ("env", *RECIPE_SECTIONS)}
        return {name: section for name, section in given.items() if section}


def read_recipe(choice: str) -> Recipe:
    """The recipe of a task, by name or by path; raises `UserError` with everything that is wrong with it."""
    try:
        return Recipe.model_validate({**read_choice("task", choice), "title": choices("task").get(choice, "")})
    except ValidationError as error:
        raise UserError("; ".join(_describe(choice, problem) for problem in error.errors())) from None


def _describe(choice: str, problem: Any) -> str:
    name = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        fields = [field for field in (*Recipe.model_fields, *Published.model_fields) if field != "title"]
        return f"{choice} has an unknown entry {name}{suggestion(name, fields)}"
    message = "missing" if problem["type"] == "missing" else f"{problem['input']!r}: {problem['msg'].lower()}"
    return f"{choice}: {name}: {message}"
