"""The plan, records and result of a run, as training passes them to a display."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from engram.env.parts import box
from engram.env.spec import EnvSpec

SIZES = SimpleNamespace(
    num_envs=64, rows=64, horizon=64, segments=64, batch_size=4096, minibatch_size=1024, num_workers=2
)
FIGURES = {
    "episode/count": 12,
    "episode/return": 0.44,
    "episode/length": 12.3,
    "loss/policy": -0.0123,
    "loss/value": 0.0034,
    "loss/entropy": 1.21,
    "loss/kl": 0.0031,
    "loss/clip_fraction": 0.08,
    "gradient/norm": 0.421,
    "gradient/norm_recurrent": 0.212,
    "memory/replay_error": 2.4e-7,
    "memory/norm": 4.21,
    "value/explained_variance": 0.87,
    "process/megabytes": 812.0,
}


@pytest.fixture
def spec() -> EnvSpec:
    tokens, actions = box((200, 3), np.dtype(np.uint8)), spaces.Discrete(5)
    return EnvSpec("tmaze", tokens, actions, "tokens", memoryless_ceiling=0.45, mean_return_goal=1.0)


@pytest.fixture
def plan(spec: EnvSpec) -> SimpleNamespace:
    return SimpleNamespace(
        run="first",
        policy="fast",
        env=spec,
        sizes=SIZES,
        device="cpu",
        parameters=1_234_567,
        total_timesteps=1_000_000,
        steps_done=0,
        steps_at_end=1_000_000,
    )


@pytest.fixture
def record() -> Callable[..., dict[str, Any]]:
    """The record of an epoch that took half a second: 40% environment, 20% inference, 30% learning."""

    def make(epoch: int, mean_return: float | None = 0.31, **other: Any) -> dict[str, Any]:
        time = {
            "time/seconds": 0.5 * epoch,
            "time/steps_per_second": 8192.0,
            "time/environment_seconds": 0.2,
            "time/inference_seconds": 0.1,
            "time/learning_seconds": 0.15,
        }
        return {"epoch": epoch, "steps": 4096 * epoch, "return": mean_return, **FIGURES, **time, **other}

    return make


@pytest.fixture
def result(spec: EnvSpec) -> Callable[..., SimpleNamespace]:
    def make(mean_return: float | None = 0.93, **other: Any) -> SimpleNamespace:
        checkpoint = Path("runs/first/checkpoints/epoch_000245")
        values = {"run": "first", "checkpoint": checkpoint, "env": spec, "steps": 1_003_520, "seconds": 94.0}
        return SimpleNamespace(**values | {"mean_return": mean_return, "diagnosis": None} | other)

    return make
