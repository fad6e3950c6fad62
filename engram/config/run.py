"""RunSettings: the settings of every part of a run in one model, and the dotted names that a command line may set."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import Field, ValidationInfo, field_validator, model_validator

from engram.agent.settings import POLICIES, PyAgent, YamlAgent
from engram.diagnosis import delay_of
from engram.env.settings import EnvSettings, Gym, MettagridFile, PettingZoo, PythonEnv
from engram.nearest import suggestion
from engram.settings import Settings
from engram.training.settings import Trainer, Wandb

LONGEST_SEGMENT = 512  # steps, unless settings ask for more
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


class RunSettings(Settings):
    """All settings of a run. Exactly one of `py_agent` and `agent` is given."""

    runs_dir: str = "runs"
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    init_from: str | None = None  # the directory of a run or checkpoint to take the initial weights from
    hooks: str | None = None  # file.py:function or package.module:function, called after every epoch
    py_agent: PyAgent | None = None
    agent: YamlAgent | None = None
    env: EnvSettings
    trainer: Trainer = Trainer()
    wandb: Wandb = Wandb()
    task: str | None = None  # the recipe that the settings are based on
    run: str = Field(default_factory=lambda given: _default_name(given))  # last: its default is made from the others

    @property
    def policy(self) -> PyAgent | YamlAgent:
        policy = self.py_agent or self.agent
        assert policy is not None
        return policy

    @property
    def directory(self) -> Path:
        """The directory of the run's settings, metrics and checkpoints."""
        return Path(self.runs_dir) / self.run

    @field_validator("run")
    @classmethod
    def _is_a_directory_name(cls, run: str) -> str:
        if not SAFE_NAME.fullmatch(run):
            hint = f": try {safe}" if (safe := _safe(run)) else ""
            raise ValueError(f"'{run}' cannot name a directory (letters, digits and . _ + -, at most 100){hint}")
        return run

    @field_validator("py_agent")
    @classmethod
    def _is_a_policy(cls, policy: PyAgent | None) -> PyAgent | None:
        if policy and policy.name not in POLICIES and ":" not in policy.name:
            near = suggestion(policy.name, POLICIES) or ";"
            raise ValueError(f"no policy '{policy.name}'{near} there are {', '.join(POLICIES)}, or file.py:Class")
        return policy

    @field_validator("trainer")
    @classmethod
    def _segments_span_the_delay(cls, trainer: Trainer, info: ValidationInfo) -> Trainer:
        """Unless set, segments are a power of two, at least a quarter longer than the delay, if it is known.

        Some segments then hold both the cue and the action that needs it: no gradient crosses a segment's edge.
        """
        delay = delay_of(info.data["env"]) if "env" in info.data else None
        if delay is None or "bptt_horizon" in trainer.model_fields_set:
            return trainer
        horizon = max(trainer.bptt_horizon, min(1 << (delay * 5 // 4).bit_length(), LONGEST_SEGMENT))
        return trainer.model_copy(update={"bptt_horizon": horizon})

    @model_validator(mode="after")
    def _one_policy(self) -> "RunSettings":
        if (self.py_agent is None) == (self.agent is None):
            raise ValueError("give one of py_agent= (a policy in Python) and agent= (a policy in YAML)")
        return self


@cache
def known_settings() -> dict[str, Any]:
    """The name and type of every setting, for all kinds of environment."""
    return dict(_walk(RunSettings, ""))


@cache
def environment_settings() -> dict[str, type[Settings]]:
    """The settings model of each kind of environment."""
    return {model.model_fields["kind"].default: model for model in _models(known_settings()["env"])}


@cache
def usable_settings(kind: str | None, policy: str | None) -> frozenset[str]:
    """The names that a run with this kind of environment and `py_agent` or `agent` can set. None: any of them."""
    of_env = {name for name, _ in _walk(environment_settings()[kind], "env.")} if kind else {*known_settings()}
    excluded = {"py_agent": ("agent.",), "agent": ("py_agent.",), None: ()}[policy]
    allowed = {name for name in known_settings() if name in of_env or not name.startswith("env.")}
    return frozenset(name for name in allowed if not name.startswith(excluded))


def is_open_setting(name: str, usable: frozenset[str]) -> bool:
    """Whether an unlisted name may be set: a key of a dictionary, or a keyword argument of a policy."""
    parts = name.split(".")
    parents = [".".join(parts[:end]) for end in range(1, len(parts))]
    is_option = name.startswith("py_agent.") and "py_agent.name" in usable
    return is_option or any(parent in usable and get_origin(known_settings()[parent]) is dict for parent in parents)


def environments_with(name: str) -> list[str]:
    """The kinds of environment that have a setting."""
    usable = {kind: usable_settings(kind, None) for kind in environment_settings()}
    return [kind for kind, names in usable.items() if name in names or is_open_setting(name, names)]


def is_text_setting(name: str) -> bool:
    return name in known_settings() and set(leaf_types(known_settings()[name])) <= {str, NoneType}


def leaf_types(annotation: Any) -> list[Any]:
    """The plain types and literals in an annotation: `int | None` gives `[int, NoneType]`."""
    arguments = get_args(annotation)
    if not arguments or get_origin(annotation) in (dict, list):
        return [get_origin(annotation) or annotation]
    if get_origin(annotation) is Literal:
        return list(arguments)
    return [leaf for argument in arguments for leaf in leaf_types(argument)]


def _default_name(given: dict[str, Any]) -> str:
    """`fast_tmaze`: the policy and the environment."""
    policy = given.get("py_agent") or given.get("agent") or PyAgent()
    env = given["env"]
    env_name = env.kind
    if task := given.get("task"):
        env_name = task if not task.endswith((".yaml", ".yml")) else Path(task).stem
    elif isinstance(env, Gym):
        env_name = env.id
    elif isinstance(env, PythonEnv):
        env_name = env.title
    elif isinstance(env, PettingZoo):
        env_name = env.module.rpartition(".")[2]
    elif isinstance(env, MettagridFile):
        env_name = Path(env.path).stem
    return _safe(f"{policy.name.rpartition(':')[2]}_{env_name}") or "run"


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip(".-_+")[:100]


def _walk(model: type[Settings], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, field in model.model_fields.items():
        yield prefix + name, field.annotation
        for part in _models(field.annotation):
            yield from _walk(part, f"{prefix}{name}.")


def _models(annotation: Any) -> list[type[Settings]]:
    return [leaf for leaf in leaf_types(annotation) if isinstance(leaf, type) and issubclass(leaf, Settings)]
