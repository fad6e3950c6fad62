"""The dotted names of all settings, collected from the models: what a command line may set."""

from collections.abc import Iterator
from functools import cache
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from engram.config.run import RunSettings
from engram.settings import Settings


@cache
def known() -> dict[str, Any]:
    """The name and type of every setting, for all kinds of environment."""
    return dict(_walk(RunSettings, ""))


@cache
def environments() -> dict[str, type[Settings]]:
    """The settings model of each kind of environment."""
    return {model.model_fields["kind"].default: model for model in _models(known()["env"])}


@cache
def usable(kind: str | None, policy: str | None) -> frozenset[str]:
    """The names that a run with this kind of environment and `py_agent` or `agent` can set. None: any of them."""
    of_env = {name for name, _ in _walk(environments()[kind], "env.")} if kind else {*known()}
    other = {"py_agent": "agent.", "agent": "py_agent.", None: "-"}[policy]
    return frozenset(
        name for name in known() if not name.startswith(other) and (name in of_env or not name.startswith("env."))
    )


def is_open(name: str, usable: frozenset[str]) -> bool:
    """Whether an unlisted name may be set: a key of a dictionary, or a keyword argument of a policy."""
    parts = name.split(".")
    parents = [".".join(parts[:end]) for end in range(1, len(parts))]
    is_option = name.startswith("py_agent.") and "py_agent.name" in usable
    return is_option or any(parent in usable and get_origin(known()[parent]) is dict for parent in parents)


def environments_with(name: str) -> list[str]:
    """The kinds of environment that have a setting."""
    return [kind for kind in environments() if name in (names := usable(kind, None)) or is_open(name, names)]


def is_text(name: str) -> bool:
    return name in known() and set(leaf_types(known()[name])) <= {str, NoneType}


def leaf_types(annotation: Any) -> list[Any]:
    """The plain types and literals in an annotation: `int | None` gives `[int, NoneType]`."""
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
