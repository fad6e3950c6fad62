"""Schedules: hyper-parameters that change during a run, as functions of how far it has come or of what is measured.

Light to import: settings are checked before torch is loaded.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import cos, pi
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from engram.nearest import suggestion
from engram.settings import Settings, UserError

if TYPE_CHECKING:
    from engram.training.settings import Trainer

SCHEDULABLE = ("ppo", "optimizer", "prioritized")  # the sections of the trainer whose numbers can be scheduled
SOMETIMES = ("episode/", "evaluate/", "time/", "weights/")  # metrics that may be missing at first and come later

Share = Annotated[float, Field(ge=0, le=1)]


class Constant(Settings):
    """The value that is set, but for a warm-up."""

    kind: Literal["constant"]
    warmup: Share = 0.0  # the value rises from 0 over this share of the run


class Ramp(Settings):
    """From the value that is set to another one."""

    kind: Literal["linear", "cosine"]
    to: float
    until: Annotated[float, Field(gt=0)] = 1.0  # reached after this share of the run
    warmup: Share = 0.0


class ByMetric(Settings):
    """Multiplied by a factor when a metric stalls (`patience`), or as it takes to keep one near a `target`."""

    kind: Literal["metric"]
    metric: str  # a name in the records of metrics.jsonl
    factor: Annotated[float, Field(gt=0)]
    patience: Annotated[int, Field(ge=1)] | None = None  # epochs without a better metric
    better: Literal["higher", "lower"] = "higher"
    target: Annotated[float, Field(gt=0)] | None = None  # above twice this: times factor; below half: divided by it
    least: float | None = None  # null: not below the value that is set
    most: float | None = None  # null: not above it

    @model_validator(mode="after")
    def _has_one_rule_and_room(self) -> "ByMetric":
        if (self.patience is None) == (self.target is None):
            raise ValueError("give one of patience (change when the metric stalls) and target (keep it near)")
        if self.least is None and self.most is None:
            raise ValueError("give least, most or both: how far the value may go from the one that is set")
        return self


Schedule = Annotated[Constant | Ramp | ByMetric, Field(discriminator="kind")]


@dataclass
class Watched:
    """What a schedule by metric knows of the epochs before."""

    scale: float = 1.0  # of the value that is set
    best: float | None = None
    waited: int = 0  # epochs since then


class Schedules:
    """The settings of each epoch. What schedules by metric have seen is all the state there is."""

    def __init__(self, schedules: Mapping[str, Schedule]) -> None:
        self.schedules = dict(schedules)
        self.watched = {name: Watched() for name, kind in schedules.items() if isinstance(kind, ByMetric)}

    def now(self, settings: "Trainer", share: float) -> "Trainer":
        """A copy with the values that scheduled settings have after this share of the run."""
        changed: dict[str, dict[str, float]] = {}
        for name, schedule in self.schedules.items():
            section, _, key = name.partition(".")
            value = getattr(getattr(settings, section), key)
            if isinstance(schedule, ByMetric):
                value *= self.watched[name].scale
            else:
                value = value_at(schedule, value, share)
            changed.setdefault(section, {})[key] = value
        sections = {name: getattr(settings, name).model_copy(update=values) for name, values in changed.items()}
        return settings.model_copy(update=sections)

    def record(self, settings: "Trainer") -> dict[str, float]:
        """The values of scheduled settings, for the record of an epoch."""
        values = {name: getattr(settings, name.partition(".")[0]) for name in self.schedules}
        return {f"schedule/{name}": getattr(section, name.partition(".")[2]) for name, section in values.items()}

    def observe(self, record: Mapping[str, Any], settings: "Trainer") -> None:
        """Let schedules by metric see the record of an epoch; `settings` are those of the run."""
        if record.get("epoch") == 1:
            self._refuse_unknown_metrics(record)
        for name, before in self.watched.items():
            section, _, key = name.partition(".")
            schedule = self.schedules[name]
            assert isinstance(schedule, ByMetric)
            measured = record.get(schedule.metric)
            if measured is not None:
                self.watched[name] = follow(schedule, before, measured, getattr(getattr(settings, section), key))

    def _refuse_unknown_metrics(self, record: Mapping[str, Any]) -> None:
        for name, schedule in self.schedules.items():
            if not isinstance(schedule, ByMetric) or schedule.metric in record or schedule.metric.startswith(SOMETIMES):
                continue
            hint = suggestion(schedule.metric, record, otherwise=f": there are {', '.join(record)}")
            raise UserError(f"trainer.schedule.{name}.metric: no {schedule.metric} is measured{hint}")

    def state(self) -> dict[str, dict[str, Any]]:
        return {name: asdict(watched) for name, watched in self.watched.items()}

    def load_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        self.watched |= {name: Watched(**watched) for name, watched in state.items() if name in self.watched}


def value_at(schedule: Constant | Ramp, value: float, share: float) -> float:
    """What `value` becomes after this share of the run."""
    if share < schedule.warmup:
        return value * share / schedule.warmup
    if isinstance(schedule, Constant):
        return value
    passed = min(1.0, (share - schedule.warmup) / max(schedule.until - schedule.warmup, 1e-12))
    if schedule.kind == "cosine":
        passed = (1 - cos(pi * passed)) / 2
    return value + (schedule.to - value) * passed


def follow(schedule: ByMetric, before: Watched, measured: float, value: float) -> Watched:
    """What is known after one more epoch, for a setting that is set to `value`."""
    scale, best, waited = before.scale, before.best, before.waited
    if schedule.target is not None:
        if measured > 2 * schedule.target:
            scale *= schedule.factor
        elif measured < schedule.target / 2:
            scale /= schedule.factor
    elif best is None or (measured > best if schedule.better == "higher" else measured < best):
        best, waited = measured, 0
    else:
        waited += 1
        if waited == schedule.patience:
            scale, waited = scale * schedule.factor, 0
    least, most = _bounds(schedule, value)
    return Watched(min(max(value * scale, least), most) / value, best, waited)


def by_dotted_name(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """`{ppo: {ent_coef: …}}`, as a command line gives it, as `{ppo.ent_coef: …}`. A schedule has values of its own."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        is_tree = isinstance(value, dict) and value and all(isinstance(part, dict) for part in value.values())
        above = is_tree or (isinstance(value, dict) and key in SCHEDULABLE)
        for name, part in (by_dotted_name(value, f"{prefix}{key}.") if above else {f"{prefix}{key}": value}).items():
            both = isinstance(part, dict) and isinstance(flat.get(name), dict)
            flat[name] = {**flat[name], **part} if both else part
    return flat


def problems(schedules: Mapping[str, Schedule], sections: Mapping[str, Settings]) -> list[str]:
    """Schedules of what is no number of these sections, and those that would give one a value it may not have."""
    values = {f"{section}.{key}": value for section, part in sections.items() for key, value in part}
    numbers = [name for name, value in values.items() if isinstance(value, float)]
    found = []
    for name, schedule in schedules.items():
        if name not in numbers:
            hint = suggestion(name, numbers, otherwise=f": there are {', '.join(numbers)}")
            hint = f": give trainer.{name} a value first" if name in values and values[name] is None else hint
            found.append(f"no number {name} to schedule{hint}")
            continue
        if isinstance(schedule, ByMetric) and not _is_within(schedule, values[name]):
            found.append(f"{name} is set to {values[name]:g}, which is 0 or not between its least and most")
        section, _, key = name.partition(".")
        for end in _ends(schedule, values[name]):
            try:
                type(sections[section]).model_validate({**dict(sections[section]), key: end})
            except ValidationError as error:
                said = error.errors()[0]["msg"].removeprefix("Input ")
                shown = schedule.to if isinstance(schedule, Ramp) else end
                found.append(f"{name} would become {shown:g}, but {said}")
    return found


def _bounds(schedule: ByMetric, value: float) -> tuple[float, float]:
    return value if schedule.least is None else schedule.least, value if schedule.most is None else schedule.most


def _is_within(schedule: ByMetric, value: float) -> bool:
    least, most = _bounds(schedule, value)
    return value != 0 and least <= value <= most


def _ends(schedule: Constant | Ramp | ByMetric, value: float) -> list[float]:
    """The outermost values. A ramp only approaches its end: a rate may sink to 0, which it may not be set to."""
    if isinstance(schedule, Ramp):
        return [value + 0.999 * (schedule.to - value)]
    if isinstance(schedule, ByMetric):
        return [bound for bound in (schedule.least, schedule.most) if bound is not None]
    return []
