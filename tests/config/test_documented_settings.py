"""docs/environments.md and docs/training.md list every setting with its default."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from engram.config.groups import choices, read_recipe
from engram.config.run import environment_settings, leaf_types
from engram.config.run_directory import MAY_CHANGE
from engram.training.settings import Trainer, Wandb

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"


def tables(page: str) -> dict[str, dict[str, str]]:
    """The tables of settings of a page: column -> setting -> cell."""
    documented: dict[str, dict[str, str]] = {}
    columns: list[str] = []
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        first, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        if first == "setting":
            columns = [cell.strip("`") for cell in cells[:-1]]
        elif re.fullmatch(r"`[\w.]+`", first):
            for column, cell in zip(columns, cells, strict=False):
                documented.setdefault(column, {})[first.strip("`")] = cell
        elif not line.startswith("|"):
            columns = []
    return documented


def defaults(model: type[BaseModel], prefix: str) -> dict[str, Any]:
    """The settings of a model and its nested models, with their defaults."""
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        parts = leaf_types(field.annotation)
        below = [part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)]
        found |= defaults(below[0], f"{prefix}{name}.") if below else {prefix + name: field.default}
    return found


def shown(default: Any) -> str:
    """A default as the pages write it."""
    if default is PydanticUndefined:
        return "required"
    if default is None or isinstance(default, bool):
        return {None: "null", True: "true", False: "false"}[default]
    return str(default)


@pytest.mark.parametrize("kind", environment_settings())
def test_every_setting_of_an_environment_is_documented(kind: str) -> None:
    documented = {name: cell for name, cell in tables("environments.md")[kind].items() if cell}
    expected = defaults(environment_settings()[kind], "env.")
    del expected["env.kind"]
    check(documented, expected)


def test_every_setting_of_training_is_documented() -> None:
    documented = tables("training.md")["default"]
    outside = {"run", "runs_dir", "seed", "device", "init_from", "hooks", "task"}
    assert documented.keys() >= outside
    expected = defaults(Trainer, "trainer.") | defaults(Wandb, "wandb.")
    check(
        {name: cell for name, cell in documented.items() if name not in outside}, expected | {"trainer.schedule": "of"}
    )


def test_settings_that_may_change_on_resume_are_documented() -> None:
    page = (DOCS / "training.md").read_text(encoding="utf-8")
    section = page.partition("## Resuming a run")[2].partition("Any other change")[0]
    assert set(re.findall(r"`([a-z_.]+)`", section)) - {"interval", "keep"} == set(MAY_CHANGE)


def check(documented: dict[str, str], expected: dict[str, Any]) -> None:
    assert documented.keys() == expected.keys()
    wrong = {
        name: documented[name] for name, default in expected.items() if not holds(documented[name], shown(default))
    }
    assert not wrong


def holds(cell: str, default: str) -> bool:
    """Whether a cell holds a default as a whole word."""
    return re.search(rf"(?<![\w.-]){re.escape(default)}(?![\w.])", cell) is not None


def test_every_recipe_is_documented_with_its_budget_and_goal() -> None:
    page = (DOCS / "tasks.md").read_text(encoding="utf-8")
    for task in choices("task"):
        recipe = read_recipe(task)
        goal = "" if recipe.goal is None else f"{recipe.goal:g}"
        score = "" if recipe.published is None else f"{recipe.published.score:g} after"
        assert f"| `{task}` | {recipe.trainer['total_timesteps']:,} | {goal} | {score}" in page
