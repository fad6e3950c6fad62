"""The pages on environments and training name every setting, with its default."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from engram.config import names

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
    return {prefix + name: field.default for name, field in model.model_fields.items() if name != "kind"}


def shown(default: Any) -> str:
    """A default as a page writes it."""
    if default is PydanticUndefined:
        return "to be given"
    if default is None or isinstance(default, bool):
        return {None: "null", True: "true", False: "false"}[default]
    return str(default)


@pytest.mark.parametrize("kind", names.environments())
def test_every_setting_of_an_environment_is_documented(kind: str) -> None:
    said = {name: cell for name, cell in tables("environments.md")[kind].items() if cell}
    expected = defaults(names.environments()[kind], "env.")
    assert said.keys() == expected.keys()
    wrong = {name: said[name] for name, default in expected.items() if shown(default) not in said[name]}
    assert not wrong
