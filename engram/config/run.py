"""Settings of a whole run: each part's own, and what belongs to none of them."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from engram.agent.settings import POLICIES, Agent, PyAgent
from engram.env.settings import EnvSettings, Gym, MettagridFile, PettingZoo
from engram.nearest import suggestion
from engram.settings import Settings
from engram.training.settings import Trainer, Wandb

SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


class RunSettings(Settings):
    """All settings of a run. Exactly one of `py_agent` and `agent` is given."""

    runs_dir: str = "runs"
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    init_from: str | None = None  # a run's directory or a checkpoint's, whose weights to begin with
    py_agent: PyAgent | None = None
    agent: Agent | None = None
    env: EnvSettings
    trainer: Trainer = Trainer()
    wandb: Wandb = Wandb()
    run: str = Field(default_factory=lambda given: _default_name(given))  # last: its default is made of the others

    @property
    def policy(self) -> PyAgent | Agent:
        policy = self.py_agent or self.agent
        assert policy is not None
        return policy

    @property
    def directory(self) -> Path:
        """Where everything about the run is kept."""
        return Path(self.runs_dir) / self.run

    @field_validator("run")
    @classmethod
    def _is_a_directory_name(cls, run: str) -> str:
        if not SAFE_NAME.fullmatch(run):
            hint = f": try {safe}" if (safe := _safe(run)) else ""
            raise ValueError(f"'{run}' is no name for a directory (letters, digits and . _ + -, at most 100){hint}")
        return run

    @field_validator("py_agent")
    @classmethod
    def _is_a_policy(cls, policy: PyAgent | None) -> PyAgent | None:
        if policy and policy.name not in POLICIES and ":" not in policy.name:
            near = suggestion(policy.name, POLICIES) or ";"
            raise ValueError(f"no policy '{policy.name}'{near} there are {', '.join(POLICIES)}, or file.py:Class")
        return policy

    @model_validator(mode="after")
    def _one_policy(self) -> "RunSettings":
        if (self.py_agent is None) == (self.agent is None):
            raise ValueError("give one of py_agent= (a policy in Python) and agent= (a policy in YAML)")
        return self


def _default_name(given: dict[str, Any]) -> str:
    """`fast_tmaze`: what is trained, and where."""
    policy = given.get("py_agent") or given.get("agent") or PyAgent()
    place = given["env"]
    where = place.kind
    if isinstance(place, Gym):
        where = place.id
    elif isinstance(place, PettingZoo):
        where = place.module.rpartition(".")[2]
    elif isinstance(place, MettagridFile):
        where = Path(place.path).stem
    return _safe(f"{policy.name.rpartition(':')[2]}_{where}") or "run"


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip(".-_+")[:100]
