import pytest
from api.echo import Echo
from api.tiny import SMALL, Small

import engram


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of a user's own environment and policy."""
    runs = tmp_path_factory.mktemp("runs")
    return engram.train(Echo, Small, total_timesteps=128, run="echo", runs_dir=runs, **SMALL)


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    return engram.train("CartPole-v1", total_timesteps=64, run="pole", runs_dir=runs, **SMALL)
