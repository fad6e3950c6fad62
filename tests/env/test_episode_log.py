"""The episode log counts episodes and keeps their actions, up to a limit."""

import numpy as np
import pytest
from gymnasium import spaces

from engram.env import episode_log as module
from engram.env.block import Buffers, Episodes
from engram.env.episode_log import EpisodeLog
from engram.env.parts import box
from engram.env.spec import EnvSpec


@pytest.fixture
def buffers():
    spec = EnvSpec("test", box((1,), np.dtype(np.float32)), spaces.MultiDiscrete([9, 9]), "vector", agents=2)
    return Buffers.allocate(spec, 4)


def take(log, buffers, value):
    buffers.actions[:] = value
    log.record_actions()


def test_the_log_grows_with_the_episode_and_keeps_every_action(buffers):
    log = EpisodeLog("test", range(2), 0, buffers)
    for step in range(300):
        take(log, buffers, step % 9)
    assert log.actions(1).shape == (300, 2, 2)
    assert log.actions(1)[:, 1, 0].tolist() == [step % 9 for step in range(300)]


def test_each_environment_has_the_actions_of_its_own_episode(buffers):
    log = EpisodeLog("test", range(2), 0, buffers)
    for step in range(5):
        take(log, buffers, step)
        if step == 2:
            log.begin(1)
    assert log.actions(0)[:, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert log.actions(1)[:, 0, 0].tolist() == [3, 4]


def test_an_episode_that_outgrows_the_log_has_no_state_until_it_ends(buffers, monkeypatch):
    monkeypatch.setattr(module, "MAX_LOGGED_STEPS", 100)
    log = EpisodeLog("test", range(2), 0, buffers)
    for step in range(100):
        take(log, buffers, step % 9)
    assert log.state()["actions"].shape == (2, 100, 2, 2)
    take(log, buffers, 1)
    assert log.state() is None
    for env in range(2):
        log.begin(env)
    assert log.state() is not None


def test_stats_are_few_and_numbers_only(buffers):
    log = EpisodeLog("test", range(2), 0, buffers)
    take(log, buffers, 0)
    log.end(0, {"word": "x", "list": [1], "yes": True} | {f"n{i}": i for i in range(50)})
    log.end(3, {"yes": np.bool_(False)})
    episodes = Episodes.concatenate([log.close_step(np.zeros(4), 1.0)])
    assert len(episodes.stats) == module.MAX_STATS
    assert episodes.stats["yes"].tolist() == [1, 0]
    assert np.isnan(episodes.stats["n0"][1])


def test_a_reset_discards_unfinished_episodes(buffers):
    log = EpisodeLog("test", range(2), 0, buffers)
    take(log, buffers, 0)
    log.close_step(np.ones(4), 1.0)
    log.close_reset()
    assert not log.returns.any()
    assert not log.lengths.any()


def test_a_state_holds_nothing_of_earlier_episodes(buffers):
    log = EpisodeLog("test", range(2), 0, buffers)
    for step in range(5):
        take(log, buffers, 7)
        if step == 2:
            log.begin(1)
    assert log.state()["actions"][1, :, 0, 0].tolist() == [7, 7, 0, 0, 0]
