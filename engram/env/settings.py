"""Settings of every kind of environment. Light to import: they are validated before anything is built."""

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from engram.settings import Settings

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Delay = Annotated[int, Field(ge=0, le=100_000)]  # of Recall, in steps
Size = Annotated[int, Field(ge=5, le=200)]
Window = Annotated[int, Field(ge=3, le=15)]
Tokens = Annotated[int, Field(ge=1, le=2000)]
Check = Literal["strict", "shapes", "off"]
Symbols = Annotated[int, Field(ge=2, le=256)] | Literal[False] | None


def _name_or_mapping(wrapper: Any) -> Any:
    if isinstance(wrapper, str | dict):
        return wrapper
    raise ValueError(f"{wrapper!r} is neither the name of a wrapper nor {{name: arguments}}")


Wrapper = Annotated[str | dict[str, Any], BeforeValidator(_name_or_mapping)]


class MettagridWorld(Settings):
    """Settings that all built-in mettagrid worlds share."""

    kind: str
    max_steps: Positive | None
    window: Window
    num_tokens: Tokens | None = None  # tokens per observation; None: the maximum that can be in view
    other_resources: list[Annotated[str, Field(min_length=1)]] = []  # of other worlds, so that one policy fits both

    @property
    def step_limit(self) -> int:
        """Maximum steps of an episode."""
        assert self.max_steps is not None
        return self.max_steps

    @field_validator("window")
    @classmethod
    def _odd(cls, window: int) -> int:
        if window % 2 == 0:
            raise ValueError(
                f"{window} is even, which the simulator cannot centre on the agent: try {window - 1} or {window + 1}"
            )
        return window


class TMaze(MettagridWorld):
    """A cue beside the start, a corridor, and two goals that look the same: only memory tells them apart."""

    kind: Literal["tmaze"] = "tmaze"
    max_steps: Positive | None = None  # null: ten times the corridor, enough for a random walk to find a goal
    window: Window = 5
    corridor: Annotated[int, Field(ge=1, le=50)] = 4
    right_reward: Annotated[float, Field(gt=0)] = 1.0
    wrong_reward: float = -0.1

    @property
    def step_limit(self) -> int:
        return self.max_steps or 10 * self.corridor

    @model_validator(mode="after")
    def _needs_memory_and_can_be_solved(self) -> "TMaze":
        if self.corridor < self.window - 1:
            raise ValueError(
                f"corridor {self.corridor} is too short for window {self.window}: cue and goals would be in view "
                f"together and no memory needed; use corridor {self.window - 1} or more, or a smaller window"
            )
        if self.step_limit < self.corridor + 2:
            raise ValueError(
                f"max_steps {self.max_steps} is too few: with corridor {self.corridor} the way to a goal takes "
                f"{self.corridor + 2} steps"
            )
        if self.wrong_reward >= self.right_reward:
            raise ValueError(
                f"wrong_reward {self.wrong_reward:g} must be less than right_reward {self.right_reward:g}: "
                "otherwise there is nothing to learn"
            )
        return self


class Room(MettagridWorld):
    """A square room with objects at random positions, new in every episode. Its outermost cells are wall."""

    agents: Positive
    size: Size
    altars: Positive
    walls: Count

    def objects(self) -> dict[str, int]:
        """The number of each kind of object, by name."""
        return {"altar": self.altars, "wall": self.walls}

    @model_validator(mode="after")
    def _fits(self) -> "Room":
        needed, free = self.agents + sum(self.objects().values()), (self.size - 2) ** 2
        if needed > free:
            enough = math.isqrt(needed - 1) + 3
            parts = " + ".join(f"{count} {name}s" for name, count in {"agent": self.agents, **self.objects()}.items())
            raise ValueError(
                f"size {self.size} leaves {free} cells inside the walls, but {parts} need {needed}: "
                f"use size {enough} or more, or fewer of them"
            )
        return self


class Workshop(Room):
    """A room where ore from mines becomes batteries in generators, and batteries become hearts at altars."""

    mines: Positive
    generators: Positive
    ore_reward: float = 0.1
    battery_reward: float = 0.3
    heart_reward: float = 1.0

    def objects(self) -> dict[str, int]:
        return {"mine": self.mines, "generator": self.generators, **super().objects()}


class Small(Workshop):
    """One agent in a small workshop."""

    kind: Literal["small"] = "small"
    max_steps: Positive = 128
    window: Window = 11
    agents: Positive = 1
    size: Size = 12
    mines: Positive = 2
    generators: Positive = 1
    altars: Positive = 1
    walls: Count = 3


class Arena(Workshop):
    """Many agents that share the mines, generators and altars of one workshop."""

    kind: Literal["arena"] = "arena"
    max_steps: Positive = 256
    window: Window = 11
    agents: Positive = 24
    size: Size = 25
    mines: Positive = 10
    generators: Positive = 5
    altars: Positive = 5
    walls: Count = 20


class Navigation(Room):
    """Altars far apart, each with one heart to take, all refilled every `refill` steps: remember where they are."""

    kind: Literal["navigation"] = "navigation"
    max_steps: Positive = 256
    window: Window = 7
    agents: Positive = 4
    size: Size = 25
    altars: Positive = 8
    walls: Count = 40
    refill: Positive = 64
    heart_reward: float = 1.0


class MettagridFile(Settings):
    """Any world from a mettagrid configuration file, JSON or YAML."""

    kind: Literal["mettagrid"] = "mettagrid"
    path: Annotated[str, Field(min_length=1)]


class Gym(Settings):
    """A Gymnasium environment by its id, with wrappers by name."""

    kind: Literal["gym"] = "gym"
    id: str = "CartPole-v1"  # package:Id imports the package that registers it, e.g. minigrid:MiniGrid-MemoryS7-v0
    kwargs: dict[str, Any] = {}
    # Innermost first: names in engram/env/wrappers.py or package.module:Class, alone or as {name: arguments}.
    wrappers: list[Wrapper] = []
    max_steps: Positive | None = None  # overrides the registered limit
    symbols: Symbols = None  # values of small grids of bytes; null: 16 if none larger is seen; false: they are pixels
    action_masks: bool = True  # use the masks in infos or in the part `action_mask` of observations
    check: Check = "shapes"  # strict: compare every observation with its space; off: no check before a run
    reward_scale: Annotated[float, Field(gt=0)] = 1.0  # for learning; reported returns are not scaled


class PythonEnv(Settings):
    """Your own environment: a Gymnasium or PettingZoo class, or a function that makes one."""

    kind: Literal["python"] = "python"
    name: Annotated[str, Field(min_length=1)]  # file.py:Class or package.module:Class; of an object, its name
    kwargs: dict[str, Any] = {}
    wrappers: list[Wrapper] = []  # of Gymnasium environments, as for gym
    max_steps: Positive | None = None  # of Gymnasium environments
    reward_scale: Annotated[float, Field(gt=0)] = 1.0  # for learning; reported returns are not scaled
    symbols: Symbols = None  # as for gym
    action_masks: bool = True  # as for gym
    check: Check = "shapes"  # as for gym

    @property
    def title(self) -> str:
        """The name of the class or function alone."""
        return self.name.rpartition(":")[2].rpartition(".")[2]


class PettingZoo(Settings):
    """A PettingZoo parallel environment: `module` has a `parallel_env`, e.g. `pettingzoo.butterfly.pistonball_v6`."""

    kind: Literal["pettingzoo"] = "pettingzoo"
    module: str  # or package.module:Class, of a ParallelEnv
    kwargs: dict[str, Any] = {}
    symbols: Symbols = None  # as for gym
    action_masks: bool = True  # as for gym
    check: Check = "shapes"  # as for gym
    reward_scale: Annotated[float, Field(gt=0)] = 1.0


class Recall(Settings):
    """Recall a cue after a delay: reward 1 for naming the cue shown at the start of the episode."""

    kind: Literal["recall"] = "recall"
    cues: Annotated[int, Field(ge=2, le=64)] = 4
    delay: Delay = 8
    delay_jitter: Delay = 0  # the delay of each episode is sampled from delay ± jitter
    distractors: Annotated[float, Field(ge=0, le=1)] = 0.0  # probability per step of a cue that must be ignored
    truncate: Annotated[float, Field(ge=0, le=1)] = 0.0  # probability per step of truncation


EnvSettings = Annotated[
    TMaze | Small | Arena | Navigation | MettagridFile | Gym | PythonEnv | PettingZoo | Recall,
    Field(discriminator="kind"),
]


def agents_of(env: Settings) -> int | None:
    """The number of agents of one environment; None if only building it can tell."""
    if isinstance(env, Room):
        return env.agents
    return None if isinstance(env, MettagridFile | PythonEnv | PettingZoo) else 1
