"""The dotted names of all settings, read off the models: what a command line may set."""

from collections.abc import Iterator
from functools import cache
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from engram.config.run import RunSettings
from engram.settings import Settings


@cache
def known() -> dict[str, Any]:
    """Every name of the run's settings, of all kinds of environment, with its type."""
    return dict(_walk(RunSettings, ""))


@cache
def environments() -> dict[str, type[Settings]]:
    """The kinds of environment and their models."""
    return {model.model_fields["kind"].default: model for model in _models(known()["env"])}


@cache
def usable(kind: str | None, policy: str | None) -> frozenset[str]:
    """The names that a run has with one kind of environment and with `py_agent` or `agent`; None: with any."""
    its = {name for name, _ in _walk(environments()[kind], "env.")} if kind else {*known()}
    other = {"py_agent": "agent.", "agent": "py_agent.", None: "-"}[policy]
    return frozenset(
        name for name in known() if not name.startswith(other) and (name in its or not name.startswith("env."))
    )


def is_open(name: str, among: frozenset[str]) -> bool:
    """Whether a name that no model lists may be set all the same: below a dictionary, or an option of a policy."""
    parts = name.split(".")
    above = [".".join(parts[:end]) for end in range(1, len(parts))]
    is_option = name.startswith("py_agent.") and "py_agent.name" in among
    return is_option or any(parent in among and get_origin(known()[parent]) is dict for parent in above)


def having(name: str) -> list[str]:
    """The kinds of environment that have a setting."""
    return [kind for kind in environments() if name in (its := usable(kind, None)) or is_open(name, its)]


def is_text(name: str) -> bool:
    """Whether a setting is text, which is taken to the letter: `run=1e5` is not a number."""
    return name in known() and set(leaf_types(known()[name])) <= {str, NoneType}


def leaf_types(annotation: Any) -> list[Any]:
    """The plain types and choices that an annotation is made of."""
    arguments = get_args(annotation)
    if not arguments or get_origin(annotation) in (dict, list):
        return [get_origin(annotation) or annotation]
    if get_origin(annotation) is Literal:
        return list(arguments)
    return [leaf for argument in arguments for leaf in leaf_types(argument)]


def _walk(model: type[Settings], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, field in model.model_fields.items():
        yield prefix + name, field.annotation
        for part in _models(field.annotation):
            yield from _walk(part, f"{prefix}{name}.")


def _models(annotation: Any) -> list[type[Settings]]:
    return [leaf for leaf in leaf_types(annotation) if isinstance(leaf, type) and issubclass(leaf, Settings)]
