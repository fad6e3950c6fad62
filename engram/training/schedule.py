"""Schedules: hyper-parameters that change with the progress of a run or with a metric. Does not import torch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import cos, pi
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from engram.nearest import suggestion
from engram.settings import Settings, UserError

if TYPE_CHECKING:
    from engram.training.settings import Trainer

SCHEDULABLE = ("ppo", "optimizer", "prioritized")  # trainer sections with schedulable numbers
OPTIONAL_METRICS = ("episode/", "evaluate/", "time/", "weights/")  # may be missing from the first records

Fraction = Annotated[float, Field(ge=0, le=1)]


class Constant(Settings):
    """The configured value, after an optional warm-up."""

    kind: Literal["constant"]
    warmup: Fraction = 0.0  # the value rises from 0 over this fraction of the run


class Ramp(Settings):
    """From the configured value to a different one."""

    kind: Literal["linear", "cosine"]
    to: float
    until: Annotated[float, Field(gt=0)] = 1.0  # reached after this fraction of the run
    warmup: Fraction = 0.0


class ByMetric(Settings):
    """Multiplies the value by a factor when a metric stalls (`patience`), or to keep it near a `target`."""

    kind: Literal["metric"]
    metric: str  # a name in metrics.jsonl
    factor: Annotated[float, Field(gt=0)]
    patience: Annotated[int, Field(ge=1)] | None = None  # epochs without improvement
    better: Literal["higher", "lower"] = "higher"
    target: Annotated[float, Field(gt=0)] | None = None  # above twice this: multiply by factor; below half: divide
    least: float | None = None  # null: the configured value
    most: float | None = None  # null: the configured value

    @model_validator(mode="after")
    def _check_rule_and_bounds(self) -> "ByMetric":
        if (self.patience is None) == (self.target is None):
            raise ValueError("give one of patience (change when the metric stalls) and target (keep the metric near)")
        if self.least is None and self.most is None:
            raise ValueError("give least, most or both: the bounds of the scheduled value")
        return self


Schedule = Annotated[Constant | Ramp | ByMetric, Field(discriminator="kind")]


@dataclass
class MetricState:
    """The state of a metric schedule."""

    scale: float = 1.0  # factor on the configured value
    best: float | None = None
    waited: int = 0  # epochs since the best


class Schedules:
    """Computes the settings of each epoch. Only metric schedules have state."""

    def __init__(self, schedules: Mapping[str, Schedule]) -> None:
        self.schedules = dict(schedules)
        self.states = {name: MetricState() for name, each in schedules.items() if isinstance(each, ByMetric)}
        self.fixed: dict[str, float] = {}  # values that a hook has set; they replace the scheduled ones

    def apply(self, settings: "Trainer", fraction: float) -> "Trainer":
        """A copy of the settings, with scheduled values as they are after this fraction of the run."""
        changed: dict[str, dict[str, float]] = {}
        for name, schedule in self.schedules.items():
            section, _, key = name.partition(".")
            value = getattr(getattr(settings, section), key)
            if isinstance(schedule, ByMetric):
                value *= self.states[name].scale
            else:
                value = value_at(schedule, value, fraction)
            changed.setdefault(section, {})[key] = value
        for name, value in self.fixed.items():
            section, _, key = name.partition(".")
            changed.setdefault(section, {})[key] = value
        sections = {name: getattr(settings, name).model_copy(update=values) for name, values in changed.items()}
        return settings.model_copy(update=sections)

    def record(self, settings: "Trainer") -> dict[str, float]:
        """The values of scheduled settings, for the metrics of an epoch."""
        values = {name: getattr(settings, name.partition(".")[0]) for name in {**self.schedules, **self.fixed}}
        return {f"schedule/{name}": getattr(section, name.partition(".")[2]) for name, section in values.items()}

    def observe(self, record: Mapping[str, Any], settings: "Trainer") -> None:
        """Update metric schedules with the record of an epoch; `settings` are those of the run."""
        if record.get("epoch") == 1:
            self._check_metric_names(record)
        for name, state in self.states.items():
            section, _, key = name.partition(".")
            schedule = self.schedules[name]
            assert isinstance(schedule, ByMetric)
            measured = record.get(schedule.metric)
            if measured is not None:
                value = getattr(getattr(settings, section), key)
                self.states[name] = next_state(schedule, state, measured, value)

    def _check_metric_names(self, record: Mapping[str, Any]) -> None:
        for name, schedule in self.schedules.items():
            if (
                not isinstance(schedule, ByMetric)
                or schedule.metric in record
                or schedule.metric.startswith(OPTIONAL_METRICS)
            ):
                continue
            hint = suggestion(schedule.metric, record, otherwise=f": choose from {', '.join(record)}")
            raise UserError(f"trainer.schedule.{name}.metric: no metric is named {schedule.metric}{hint}")

    def state(self) -> dict[str, dict[str, Any]]:
        states: dict[str, dict[str, Any]] = {name: asdict(state) for name, state in self.states.items()}
        return states | ({"fixed": dict(self.fixed)} if self.fixed else {})

    def load_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        self.fixed = dict(state.get("fixed", {}))
        self.states |= {name: MetricState(**values) for name, values in state.items() if name in self.states}


def value_at(schedule: Constant | Ramp, value: float, fraction: float) -> float:
    """The scheduled value after this fraction of the run, for a configured `value`."""
    if fraction < schedule.warmup:
        return value * fraction / schedule.warmup
    if isinstance(schedule, Constant):
        return value
    passed = min(1.0, (fraction - schedule.warmup) / max(schedule.until - schedule.warmup, 1e-12))
    if schedule.kind == "cosine":
        passed = (1 - cos(pi * passed)) / 2
    return value + (schedule.to - value) * passed


def next_state(schedule: ByMetric, state: MetricState, measured: float, value: float) -> MetricState:
    """The state after one more epoch, for a configured `value`."""
    scale, best, waited = state.scale, state.best, state.waited
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
    minimum, maximum = _bounds(schedule, value)
    return MetricState(min(max(value * scale, minimum), maximum) / value, best, waited)


def by_dotted_name(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten `{ppo: {ent_coef: schedule}}`, as a command line gives it, to `{ppo.ent_coef: schedule}`."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        # A schedule is a dict of plain values. A dict of dicts is a level above it, as is a section, even if empty.
        of_dicts = isinstance(value, dict) and value and all(isinstance(part, dict) for part in value.values())
        is_level = of_dicts or (isinstance(value, dict) and key in SCHEDULABLE)
        inner = by_dotted_name(value, f"{prefix}{key}.") if is_level else {f"{prefix}{key}": value}
        for name, part in inner.items():  # a name may be given twice, dotted and nested: then its options are merged
            merge = isinstance(part, dict) and isinstance(flat.get(name), dict)
            flat[name] = {**flat[name], **part} if merge else part
    return flat


def problems(schedules: Mapping[str, Schedule], sections: Mapping[str, Settings]) -> list[str]:
    """Errors: names that are not numbers of these sections, and schedules that lead to invalid values."""
    values = {f"{section}.{key}": value for section, part in sections.items() for key, value in part}
    numbers = [name for name, value in values.items() if isinstance(value, float)]
    found = []
    for name, schedule in schedules.items():
        if name == "ppo.ent_coef" and values.get(name) is None:
            continue  # gets its value from the kind of actions when the run starts
        if name not in numbers:
            hint = suggestion(name, numbers, otherwise=f": choose from {', '.join(numbers)}")
            hint = f": give trainer.{name} a value first" if name in values and values[name] is None else hint
            found.append(f"{name} cannot be scheduled{hint}")
            continue
        if isinstance(schedule, ByMetric) and not _is_within(schedule, values[name]):
            found.append(f"{name} is set to {values[name]:g}, but must be between least and most, and not 0")
        section, _, key = name.partition(".")
        for end in _ends(schedule, values[name]):
            try:
                type(sections[section]).model_validate({**dict(sections[section]), key: end})
            except ValidationError as error:
                reason = error.errors()[0]["msg"].removeprefix("Input ")
                shown = schedule.to if isinstance(schedule, Ramp) else end
                found.append(f"{name} would become {shown:g}, but {reason}")
    return found


def _bounds(schedule: ByMetric, value: float) -> tuple[float, float]:
    minimum = value if schedule.least is None else schedule.least
    maximum = value if schedule.most is None else schedule.most
    return minimum, maximum


def _is_within(schedule: ByMetric, value: float) -> bool:
    minimum, maximum = _bounds(schedule, value)
    return value != 0 and minimum <= value <= maximum


def _ends(schedule: Constant | Ramp | ByMetric, value: float) -> list[float]:
    """The extreme values. A ramp only approaches its end, so a rate may decay to 0 although 0 is not a valid rate."""
    if isinstance(schedule, Ramp):
        return [value + 0.999 * (schedule.to - value)]
    if isinstance(schedule, ByMetric):
        return [bound for bound in (schedule.least, schedule.most) if bound is not None]
    return []
