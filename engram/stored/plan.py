"""The plan of a run as a file: environment and sizes, for tools that read a run without building anything of it."""

import math
import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from engram.settings import Settings
from engram.stored.files import MEGABYTE, UnreadableError, has_control_characters, read_json

PLAN_FILE = "plan.json"

Count = Annotated[int, Field(ge=0, le=10**300)]  # fits into a float
Text = Annotated[str, Field(max_length=1000)]


class PlannedEnv(Settings):
    name: Text
    agents: Annotated[int, Field(ge=1)]
    memoryless_ceiling: float | None
    mean_return_goal: float | None
    uniform_entropy: float | None  # of a uniform policy; null: actions are continuous


class PlannedSizes(Settings):
    num_envs: Count
    rows: Count
    horizon: Count
    segments: Count
    batch_size: Count
    minibatch_size: Count
    num_workers: Count
    update_epochs: Count


class StoredPlan(Settings):
    """The fields of `RunPlan` that a display needs."""

    run: Text
    policy: Text
    env: PlannedEnv
    sizes: PlannedSizes
    device: Text
    parameters: Count
    total_timesteps: Count
    steps_done: Count
    steps_at_end: Count


def stored_plan(plan: Any) -> StoredPlan:
    """A `RunPlan` as it is stored."""
    env = plan.env
    return StoredPlan(
        **{name: getattr(plan, name) for name in StoredPlan.model_fields if name not in ("env", "sizes")},
        sizes=PlannedSizes(**plan.sizes._asdict()),
        env=PlannedEnv(
            name=env.name,
            agents=env.agents,
            memoryless_ceiling=env.memoryless_ceiling,
            mean_return_goal=env.mean_return_goal,
            uniform_entropy=uniform_entropy(env.single_action_space),
        ),
    )


def uniform_entropy(space: Any) -> float | None:
    """The entropy of uniformly drawn actions: log n, summed over independent actions; None if they are continuous."""
    counts = [space.n] if hasattr(space, "n") else getattr(space, "nvec", None)
    return None if counts is None else float(sum(math.log(int(count)) for count in counts))


def write_plan(directory: Path, plan: StoredPlan) -> None:
    temporary = directory / f".{PLAN_FILE}.{os.getpid()}"
    temporary.write_text(plan.model_dump_json(indent=1), encoding="utf-8")
    temporary.replace(directory / PLAN_FILE)


def read_plan(directory: Path) -> StoredPlan | None:
    """The plan stored with a run; None if it is missing or unreadable."""
    try:
        content = read_json(directory / PLAN_FILE, MEGABYTE, inside=directory)
        return None if has_control_characters(content) else StoredPlan.model_validate(content)
    except (UnreadableError, ValidationError):
        return None
