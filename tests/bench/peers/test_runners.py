"""The environments of other systems' programs: the same tasks, as vectors."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

import bench.peers

RUNNERS = Path(bench.peers.__file__).parent / "runners"


@pytest.fixture
def control(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["runner", "{}"])
    monkeypatch.syspath_prepend(str(RUNNERS))
    yield runpy.run_path(str(RUNNERS / "control.py"))
    sys.modules.pop("meter", None)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("CartPole-v1", 4),
        ("popgym:popgym-PositionOnlyCartPoleEasy-v0", 2),
        ("popgym:popgym-RepeatPreviousEasy-v0", 4),
        ("minigrid:MiniGrid-MemoryS7-v0", 147),
    ],
)
def test_observations_are_vectors_of_the_space(control, name: str, size: int) -> None:
    env = control["VectorTask"](name)
    observation, _ = env.reset(seed=1)
    after, *_ = env.step(env.action_space.sample())
    for each in (observation, after):
        assert each.shape == (size,)
        assert each.dtype == np.float32
        assert env.observation_space.contains(each)


def test_velocities_are_hidden_and_symbols_are_one_hots(control) -> None:
    cartpole, symbols = (control["VectorTask"](name) for name in ("CartPole-v1", "popgym:popgym-RepeatPreviousEasy-v0"))
    cartpole.reset(seed=1)
    observation = cartpole.step(1)[0]
    assert not observation[[1, 3]].any()
    assert observation[[0, 2]].all()
    assert sorted(symbols.reset(seed=1)[0]) == [0, 0, 0, 1]
