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
def of_environment(kind: str) -> frozenset[str]:
    """The names that one kind of environment has."""
    return frozenset(name for name, _ in _walk(environments()[kind], "env."))


@cache
def environments() -> dict[str, type[Settings]]:
    """The kinds of environment and their models."""
    return {model.model_fields["kind"].default: model for model in _models(RunSettings.model_fields["env"].annotation)}


def is_open(name: str) -> bool:
    """Whether a name that no model lists may be set all the same: below a dictionary, or an option of a policy."""
    parts = name.split(".")
    above = [".".join(parts[:end]) for end in range(1, len(parts))]
    return name.startswith("py_agent.") or any(get_origin(known().get(parent)) is dict for parent in above)


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
