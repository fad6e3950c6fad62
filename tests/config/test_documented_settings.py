"""The pages on environments and training name every setting, with its default."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from engram.config import setting_names
from engram.config.run_directory import MAY_CHANGE
from engram.training.settings import Trainer, Wandb

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"


def tables(page: str) -> dict[str, dict[str, str]]:
    """What a page's tables of settings say: by the name of a column, by the name of a setting."""
    said: dict[str, dict[str, str]] = {}
    columns: list[str] = []
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        first, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        if first == "setting":
            columns = [cell.strip("`") for cell in cells[:-1]]
        elif re.fullmatch(r"`[\w.]+`", first):
            for column, cell in zip(columns, cells, strict=False):
                said.setdefault(column, {})[first.strip("`")] = cell
        elif not line.startswith("|"):
            columns = []
    return said


def defaults(model: type[BaseModel], prefix: str) -> dict[str, Any]:
    """The settings of a model and of those below it, with their defaults."""
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        parts = setting_names.leaf_types(field.annotation)
        below = [part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)]
        found |= defaults(below[0], f"{prefix}{name}.") if below else {prefix + name: field.default}
    return found


def shown(default: Any) -> str:
    """A default as a page writes it."""
    if default is PydanticUndefined:
        return "to be given"
    if default is None or isinstance(default, bool):
        return {None: "null", True: "true", False: "false"}[default]
    return str(default)


@pytest.mark.parametrize("kind", setting_names.environments())
def test_every_setting_of_an_environment_is_documented(kind: str) -> None:
    said = {name: cell for name, cell in tables("environments.md")[kind].items() if cell}
    expected = defaults(setting_names.environments()[kind], "env.")
    del expected["env.kind"]
    check(said, expected)


def test_every_setting_of_training_is_documented() -> None:
    said = tables("training.md")["default"]
    outside = {"run", "runs_dir", "seed", "device", "init_from"}
    assert said.keys() >= outside
    expected = defaults(Trainer, "trainer.") | defaults(Wandb, "wandb.")
    check({name: cell for name, cell in said.items() if name not in outside}, expected | {"trainer.schedule": "of"})


def test_what_may_change_when_a_run_goes_on_is_documented() -> None:
    page = (DOCS / "training.md").read_text(encoding="utf-8")
    section = page.partition("## Going on with a run")[2].partition("With anything else another")[0]
    assert set(re.findall(r"`([a-z_.]+)`", section)) - {"interval", "keep"} == set(MAY_CHANGE)


def check(said: dict[str, str], expected: dict[str, Any]) -> None:
    assert said.keys() == expected.keys()
    wrong = {name: said[name] for name, default in expected.items() if not names_it(said[name], shown(default))}
    assert not wrong


def names_it(cell: str, default: str) -> bool:
    """Whether a default stands in a cell, and not as part of another word or number."""
    return re.search(rf"(?<![\w.-]){re.escape(default)}(?![\w.])", cell) is not None
