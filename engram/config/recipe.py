"""Recipes, chosen with `task=NAME`: an environment, a budget, settings, and a published score.

A recipe is a YAML file in `config/task`, or one of the user's own (`task=path/to/mine.yaml`).
"""

from typing import Any

from pydantic import Field, ValidationError

from engram.config.groups import choices, read_choice
from engram.nearest import suggestion
from engram.settings import Settings, UserError

SECTIONS = ("py_agent", "trainer")  # may hold settings that differ from the defaults


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
        given = {name: getattr(self, name) for name in ("env", *SECTIONS)}
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
