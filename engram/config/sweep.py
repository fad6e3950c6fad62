"""Settings of a sweep: the search space, how it is searched, and the settings that all of its runs share."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from engram.config.groups import read_yaml
from engram.config.load import load
from engram.config.overrides import as_text, parse_override
from engram.config.run import SAFE_NAME
from engram.nearest import suggestion
from engram.settings import Settings, SettingsError, UserError

Scalar = bool | int | float | str


class SearchRange(Settings):
    """The values of one setting: a range of numbers, or a list of choices."""

    low: int | float | None = None
    high: int | float | None = None
    log: bool = False  # search the logarithm
    step: int | float | None = None
    choices: list[Scalar | None] | None = None

    @model_validator(mode="after")
    def _is_a_range_or_choices(self) -> "SearchRange":
        if self.choices is not None:
            if self.low is not None or self.high is not None or self.log or self.step is not None:
                raise ValueError("give choices, or low and high, not both")
            if not self.choices:
                raise ValueError("choices: give at least one value")
            return self
        if self.low is None or self.high is None:
            raise ValueError("give low and high, or choices: [A, B]")
        if not self.low < self.high:
            raise ValueError(f"low ({self.low}) must be less than high ({self.high})")
        if self.log and self.low <= 0:
            raise ValueError(f"log: the logarithm needs a low above 0, got {self.low}")
        if self.log and self.step is not None:
            raise ValueError("step: a logarithmic range has no step")
        if self.step is not None and self.step <= 0:
            raise ValueError(f"step: must be above 0, got {self.step}")
        return self


class SweepSettings(Settings):
    """A sweep file."""

    study: str = "sweep"  # its runs are called STUDY_trial-0 and so on
    search: Annotated[dict[str, SearchRange], Field(min_length=1)]
    settings: list[str] = []  # of all runs, as on the command line
    trials: Annotated[int, Field(ge=1)] = 20  # in total, over all machines and restarts
    sampler: Literal["tpe", "random", "cmaes", "gp", "qmc"] = "tpe"
    pruner: Literal["median", "hyperband", "none"] = "median"
    warmup_trials: Annotated[int, Field(ge=0)] = 5  # complete trials before any is pruned
    warmup_steps: Annotated[int, Field(ge=0)] = 0  # steps of a run before it may be pruned
    direction: Literal["maximize", "minimize"] = "maximize"
    metric: str = "return"  # a name in metrics.jsonl
    storage: str | None = None  # a file or an Optuna URL; null: RUNS_DIR/STUDY.db
    parallel: Annotated[int, Field(ge=1)] | None = None  # runs at a time; null: one per core
    seed: Annotated[int, Field(ge=0)] = 1  # of the sampler


def load_sweep(path: Path) -> SweepSettings:
    """A sweep file. Its settings are checked at the ends of every range, and for every choice, before any training."""
    content = {"study": path.stem, **read_yaml(path)}
    try:
        sweep = SweepSettings.model_validate(content)
    except ValidationError as error:
        raise SettingsError([f"{path}: {line}" for line in _describe_errors(error)]) from None
    if problems := _check_settings(sweep) or _check_search(sweep):
        raise SettingsError([f"{path}: {line}" for line in problems])
    return sweep


def trial_settings(sweep: SweepSettings, values: dict[str, Any]) -> list[str]:
    """The settings of one trial as on the command line, without the name of its run."""
    return [*sweep.settings, *(f"{name}={as_text(value)}" for name, value in values.items())]


def command_line(sweep: SweepSettings, values: dict[str, Any], run: str) -> list[str]:
    """The settings of one trial with the name of its run."""
    return [*trial_settings(sweep, values), f"run={run}"]


def first_values(sweep: SweepSettings) -> dict[str, Any]:
    """One point of the search space: the lowest or first value of each setting."""
    return {name: _ends(space)[0] for name, space in sweep.search.items()}


def trial_name(sweep: SweepSettings, number: int) -> str:
    return f"{sweep.study}_trial-{number}"


def _check_settings(sweep: SweepSettings) -> list[str]:
    """The problems of the study's name and of the settings that all trials share."""
    problems = []
    if not SAFE_NAME.fullmatch(trial_name(sweep, 10**6)):
        problems.append(f"study: '{sweep.study}' cannot name directories: letters, digits and . _ + -, at most 80")
    for override in sweep.settings:
        try:
            name = parse_override(override).name
            if name in sweep.search:
                problems.append(f"settings: {name} is searched too: remove it from one of the two")
            if name == "run":
                problems.append("settings: runs are named after the study: write study: NAME instead of run=")
        except UserError as error:
            problems.append(f"settings: {error}")
    return problems


def _check_search(sweep: SweepSettings) -> list[str]:
    """The problems of the settings at both ends of every range, and for every choice."""
    first = first_values(sweep)
    points = [first, {name: _ends(space)[1] for name, space in sweep.search.items()}]
    points += [first | {name: value} for name, space in sweep.search.items() for value in space.choices or ()]
    problems: dict[str, None] = {}
    for values in points:
        try:
            load(trial_settings(sweep, values))
        except UserError as error:
            problems |= dict.fromkeys(str(error).splitlines())
    return [*problems]


def _ends(space: SearchRange) -> tuple[Any, Any]:
    if space.choices is not None:
        return space.choices[0], space.choices[-1]
    return space.low, space.high


def _describe_errors(error: ValidationError) -> list[str]:
    lines = []
    for details in error.errors():
        *before, last = map(str, details["loc"])
        name = ".".join([*before, last])
        known = SearchRange.model_fields if before else SweepSettings.model_fields
        if details["type"] == "extra_forbidden":
            lines.append(f"{name}: no such option{suggestion(last, known)}")
        elif details["type"] == "missing":
            lines.append(f"{name}: missing (see engram sweep --help for an example)")
        else:
            lines.append(f"{name}: {details['msg'].removeprefix('Value error, ')}, got {details['input']!r}")
    return lines
