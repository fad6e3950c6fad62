"""What a validation error says to the user: the setting's name, what was given, what is expected."""

from collections.abc import Callable, Mapping
from typing import Any, Union

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from engram.config import names
from engram.nearest import suggestion
from engram.training.schedule import ByMetric, Constant, Ramp

Sentence = Callable[[str, dict[str, Any]], str]  # (what was given, the error's details) -> what is wrong with it

SENTENCES: dict[str, Sentence] = {
    "bool_parsing": lambda given, _: f"{given} is neither true nor false",
    "bool_type": lambda given, _: f"{given} is neither true nor false",
    "int_parsing": lambda given, _: f"{given} is not a whole number",
    "int_type": lambda given, _: f"{given} is not a whole number",
    "int_from_float": lambda given, _: f"{given} is not a whole number",
    "float_parsing": lambda given, _: f"{given} is not a number",
    "float_type": lambda given, _: f"{given} is not a number",
    "finite_number": lambda given, _: f"{given} is not a finite number",
    "string_type": lambda given, _: f"{given} is not text",
    "list_type": lambda given, _: f"{given} is not a list: write [a,b]",
    "dict_type": lambda given, _: f"{given} is not a set of names and values: write {{name:value}}",
    "model_type": lambda given, _: f"{given} is not a set of names and values: write {{name:value}}",
    "model_attributes_type": lambda given, _: f"{given} is not a set of names and values: write {{name:value}}",
    "greater_than": lambda given, bounds: f"{given} is too small: more than {bounds['gt']:.15g}",
    "greater_than_equal": lambda given, bounds: f"{given} is too small: at least {bounds['ge']:.15g}",
    "less_than": lambda given, bounds: f"{given} is too large: less than {bounds['lt']:.15g}",
    "less_than_equal": lambda given, bounds: f"{given} is too large: at most {bounds['le']:.15g}",
    "union_tag_invalid": lambda _, tags: f"no kind {tags['tag']!r}: one of {tags['expected_tags']}",
    "value_error": lambda _, details: str(details["error"]),
}


def explain(error: ValidationError) -> dict[str, str]:
    """A line for each setting that is wrong, by its dotted name."""
    lines: dict[str, str] = {}
    for details in error.errors():
        name = _name(details)
        if details["type"] != "default_factory_not_called":  # follows from another error, which is reported itself
            lines[name] = f"{name}: {_sentence(name, details)}" if name else _sentence(name, details)
    return lines


def _name(details: ErrorDetails) -> str:
    place = [str(part) for part in details["loc"]]
    if place[0:1] == ["env"]:
        del place[1:2]  # the kind, by which the model was chosen
    elif place[:2] == ["trainer", "schedule"]:
        del place[3:4]
    return ".".join(place)


def _sentence(name: str, details: ErrorDetails) -> str:
    given, kind, context = details["input"], details["type"], details.get("ctx", {})
    if kind == "extra_forbidden":
        return f"no such option{suggestion(name, _known(name))}"
    if kind == "missing":
        return f"missing: give {name}=VALUE"
    shown = repr(given) if isinstance(given, str) else _short(given)
    if kind == "literal_error":
        choices = [str(choice) for choice in names.leaf_types(_known(name)[name]) if isinstance(choice, str)]
        return f"{shown} is not one of {', '.join(choices)}{suggestion(str(given), choices, likeness=0.7)}"
    if kind == "union_tag_not_found":
        kinds = names.environments() if name == "env" else names.leaf_types(_known(f"{name}.kind")[f"{name}.kind"])
        return f"no kind is given: one of {', '.join(kinds)}"
    if kind in SENTENCES:
        return SENTENCES[kind](shown, context)
    return f"{shown}: {details['msg'][:1].lower()}{details['msg'][1:]}"


def _known(name: str) -> Mapping[str, Any]:
    """The names among which this one stands, with their types. Below a schedule those are the same for every name."""
    if not name.startswith("trainer.schedule."):
        return names.known()
    known: dict[str, Any] = {}
    for model in (Constant, Ramp, ByMetric):
        for key, field in model.model_fields.items():
            near = f"{name.rpartition('.')[0]}.{key}"
            known[near] = Union[known.get(near, field.annotation), field.annotation]  # noqa: UP007
    return known


def _short(given: Any) -> str:
    text = "null" if given is None else str(given).lower() if isinstance(given, bool) else str(given)
    return text if len(text) <= 60 else f"{text[:57]}…"
