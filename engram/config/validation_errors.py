"""Turns pydantic's validation errors into messages: the setting's name, what was given, what is expected."""

import re
from collections.abc import Mapping
from typing import Any, Union

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from engram.config.overrides import as_text
from engram.config.run import environment_settings, known_settings, leaf_types
from engram.nearest import suggestion
from engram.training.schedule import ByMetric, Constant, Ramp

MAPPING = "{given} is not a set of names and values: write {{name:value}}"
MAX_SUGGESTIONS = 10  # further unknown names get none: finding the nearest takes time
MESSAGES = {  # pydantic's type of error -> message, with the fields of its context
    "bool_parsing": "{given} is neither true nor false",
    "bool_type": "{given} is neither true nor false",
    "int_parsing": "{given} is not a whole number",
    "int_type": "{given} is not a whole number",
    "int_parsing_size": "{given} is too large",
    "int_from_float": "{given} is not a whole number",
    "float_parsing": "{given} is not a number",
    "float_type": "{given} is not a number",
    "finite_number": "{given} is not a finite number",
    "string_type": "{given} is not text",
    "list_type": "{given} is not a list: write [a,b]",
    "dict_type": MAPPING,
    "model_type": MAPPING,
    "model_attributes_type": MAPPING,
    "greater_than": "{given} is too small: more than {gt:.15g}",
    "greater_than_equal": "{given} is too small: at least {ge:.15g}",
    "less_than": "{given} is too large: less than {lt:.15g}",
    "less_than_equal": "{given} is too large: at most {le:.15g}",
    "union_tag_invalid": "no kind {tag!r}: one of {expected_tags}",
    "value_error": "{error}",
}


def describe_errors(error: ValidationError) -> dict[str, str]:
    """One line for each wrong setting, by its dotted name."""
    lines: dict[str, str] = {}
    for details in error.errors():
        name = _dotted_name(details)
        if details["type"] != "default_factory_not_called":  # follows from another error, which is reported itself
            many = details["type"] == "extra_forbidden" and len(lines) >= MAX_SUGGESTIONS
            message = "no such option" if many else _message(name, details)
            lines[name] = f"{name}: {message}" if name else message
    return lines


def _dotted_name(details: ErrorDetails) -> str:
    path = [str(part) for part in details["loc"]]
    # Pydantic inserts the tag by which it chose the model of a union.
    if path[0:1] == ["env"]:
        del path[1:2]
    elif path[:2] == ["trainer", "schedule"]:
        del path[3:4]
    return ".".join(path)


def _message(name: str, details: ErrorDetails) -> str:
    given, kind, context = details["input"], details["type"], details.get("ctx", {})
    if kind == "extra_forbidden":
        return f"no such option{suggestion(name, _names_beside(name))}"
    if kind == "missing":
        return f"missing: give {name}=VALUE"
    shown = repr(given) if isinstance(given, str) else _shorten(given)
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        return f"{shown} is not one of {', '.join(choices)}{suggestion(str(given), choices, likeness=0.7)}"
    if kind == "union_tag_not_found":
        return f"no kind is given: one of {', '.join(_kinds(name))}"
    if kind in MESSAGES:
        return MESSAGES[kind].format(given=shown, **context)
    return f"{shown}: {details['msg'][:1].lower()}{details['msg'][1:]}"


def _kinds(name: str) -> list[str]:
    if name == "env":
        return [*environment_settings()]
    return leaf_types(_names_beside(f"{name}.kind")[f"{name}.kind"])


def _names_beside(name: str) -> Mapping[str, Any]:
    """The known names with their types. Below `trainer.schedule`, each scheduled name has the same settings."""
    if not name.startswith("trainer.schedule."):
        return known_settings()
    known: dict[str, Any] = {}
    for model in (Constant, Ramp, ByMetric):
        for key, field in model.model_fields.items():
            sibling = f"{name.rpartition('.')[0]}.{key}"
            known[sibling] = Union[known.get(sibling, field.annotation), field.annotation]  # noqa: UP007
    return known


def _shorten(given: Any) -> str:
    text = as_text(given)
    return text if len(text) <= 60 else f"{text[:57]}…"
