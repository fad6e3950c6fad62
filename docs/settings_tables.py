"""The directive `settings`: tables made from the models in the code and the comments beside their fields."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from docutils import nodes
from pydantic import BaseModel
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from engram.agent.settings import PyAgent, YamlAgent
from engram.config.evaluation import EvalSettings
from engram.config.run import RunSettings
from engram.config.sweep import SearchRange, SweepSettings
from engram.env.settings import Arena, Gym, MettagridFile, Navigation, PettingZoo, PythonEnv, Recall, Small, TMaze
from engram.training.schedule import ByMetric, Constant, Ramp
from engram.training.settings import Trainer, Wandb

ENVIRONMENTS = (TMaze, Small, Arena, Navigation, MettagridFile, Gym, PythonEnv, PettingZoo, Recall)
MODELS: dict[str, tuple[str, type[BaseModel]]] = {  # name -> prefix of its settings, model
    "run": ("", RunSettings),
    "trainer": ("trainer.", Trainer),
    "wandb": ("wandb.", Wandb),
    "py_agent": ("py_agent.", PyAgent),
    "agent": ("agent.", YamlAgent),
    "eval": ("", EvalSettings),
    "sweep": ("", SweepSettings),
    "search": ("", SearchRange),
    "constant": ("", Constant),
    "ramp": ("", Ramp),
    "metric": ("", ByMetric),
    **{model.__name__.lower(): ("env.", model) for model in ENVIRONMENTS},
}
GROUPS = ("py_agent", "agent", "env", "trainer", "wandb")  # of RunSettings, with tables of their own
PAGES = ("training.md", "policies.md", "many-runs.md")
ROW = re.compile(r"^\| `([\w.]+)` \|.*\| ([^|]*?) ?\|$", re.MULTILINE)
FIELD = re.compile(r"^ {4}(\w+): .*?(?:  # (.*))?$")
COMMENT = re.compile(r"^ {4}# (.*)$")


class SettingsTable(SphinxDirective):
    """`:::{settings} trainer`: a table of a model, and one of each model inside it."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        prefix, model = MODELS[self.arguments[0]]
        lines = ["| setting | type | default | |", "|---|---|---|---|"]
        lines += [f"| `{name}` | {kind} | {default} | {text} |" for name, kind, default, text in rows(prefix, model)]
        return self.parse_text_to_nodes("\n".join(lines))


def rows(prefix: str, model: type[BaseModel]) -> Iterator[tuple[str, str, str, str]]:
    """Name, type, default and meaning of every setting of a model, and of the models inside it."""
    texts = comments(model) | documented(prefix)
    for name, field in model.model_fields.items():
        inner = field.default if isinstance(field.default, BaseModel) else None
        if inner is not None and name not in GROUPS:
            yield from rows(f"{prefix}{name}.", type(inner))
        elif not (model is RunSettings and name in GROUPS) and name != "kind":
            yield f"{prefix}{name}", kind_of(field), default_of(field), texts.get(name, "").replace("|", "\\|")


def documented(prefix: str) -> dict[str, str]:
    """The last column of the tables of other pages, by the name without its prefix. Environments share names."""
    if prefix == "env.":
        return {}
    found = {}
    for page in PAGES:
        text = (Path(__file__).parent / page).read_text(encoding="utf-8")
        found |= {name: meaning for name, meaning in ROW.findall(text) if meaning}
    return {name.removeprefix(prefix): text for name, text in found.items() if name.startswith(prefix)}


def comments(model: type[BaseModel]) -> dict[str, str]:
    """The comment at the end of each field's line, or above it; those of base classes too."""
    texts: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if not (issubclass(base, BaseModel) and base.model_fields):
            continue
        above: list[str] = []
        for line in inspect.getsource(base).splitlines():
            if comment := COMMENT.match(line):
                above.append(comment[1])
                continue
            if field := FIELD.match(line):
                text = field[2] or " ".join(above)
                if text:
                    texts[field[1]] = text
            above = []
    return texts


NAMES = {int: "integer", float: "number", str: "text", bool: "true or false", type(None): "null"}


def kind_of(field: Any) -> str:
    """The type as a user writes it, with its limits."""
    limits = []
    for limit in field.metadata:
        for name, text in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<")):
            if (bound := getattr(limit, name, None)) is not None:
                limits.append(f"{text} {bound}")
    return " ".join([_type(field.annotation), *limits])


def _type(kind: Any) -> str:
    if kind in NAMES:
        return NAMES[kind]
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inside)
    if origin is list:
        return f"list of {_type(inside[0])}"
    if origin is dict:
        return "mapping"
    if origin is Annotated:
        return _type(inside[0])
    return " or ".join(dict.fromkeys(map(_type, inside))) if inside else "anything"


def default_of(field: Any) -> str:
    if field.is_required():
        return "required"
    if field.default_factory is not None:
        return "made from the others"
    value = field.default
    shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{shown}`" if shown else ""


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("settings", SettingsTable)
    return {"parallel_read_safe": True}
