"""The journal of a block counts episodes, keeps their actions, and stops keeping them when they grow too long."""

import numpy as np
import pytest
from gymnasium import spaces

from engram.env import episode_log as module
from engram.env.block import Buffers, Episodes
from engram.env.episode_log import Journal
from engram.env.spec import EnvSpec, box


@pytest.fixture
def buffers():
    spec = EnvSpec("test", box((1,), np.dtype(np.float32)), spaces.MultiDiscrete([9, 9]), "vector", agents=2)
    return Buffers.allocate(spec, 4)


def take(journal, buffers, value):
    buffers.actions[:] = value
    journal.record()


def test_the_log_grows_with_the_episode_and_keeps_every_action(buffers):
    journal = Journal("test", range(2), 0, buffers)
    for step in range(300):
        take(journal, buffers, step % 9)
    assert journal.logged(1).shape == (300, 2, 2)
    assert journal.logged(1)[:, 1, 0].tolist() == [step % 9 for step in range(300)]


def test_each_environments_log_is_that_of_its_own_episode(buffers):
    journal = Journal("test", range(2), 0, buffers)
    for step in range(5):
        take(journal, buffers, step)
        journal.close_step(np.zeros(4), 1.0, [1] if step == 2 else [])
    assert journal.logged(0)[:, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert journal.logged(1)[:, 0, 0].tolist() == [3, 4]


def test_an_episode_that_outgrows_the_log_has_no_state_until_it_ends(buffers, monkeypatch):
    monkeypatch.setattr(module, "LOGGED_STEPS", 100)
    journal = Journal("test", range(2), 0, buffers)
    for step in range(100):
        take(journal, buffers, step % 9)
    assert journal.state()["log"].shape == (2, 100, 2, 2)
    take(journal, buffers, 1)
    assert journal.state() is None
    journal.close_step(np.zeros(4), 1.0, [0, 1])
    assert journal.state() is not None


def test_stats_are_few_and_numbers_only(buffers):
    journal = Journal("test", range(2), 0, buffers)
    take(journal, buffers, 0)
    journal.end(0, {"word": "x", "list": [1], "yes": True} | {f"n{i}": i for i in range(50)})
    journal.end(3, {"yes": np.bool_(False)})
    episodes = Episodes.concatenate([journal.close_step(np.zeros(4), 1.0, [])])
    assert len(episodes.stats) == module.EPISODE_STATS
    assert episodes.stats["yes"].tolist() == [1, 0]
    assert np.isnan(episodes.stats["n0"][1])


def test_a_reset_forgets_what_was_unfinished(buffers):
    journal = Journal("test", range(2), 0, buffers)
    take(journal, buffers, 0)
    journal.close_step(np.ones(4), 1.0, [])
    journal.close_reset()
    assert not journal.returns.any()
    assert not journal.steps.any()


def test_a_state_has_nothing_of_episodes_before(buffers):
    journal = Journal("test", range(2), 0, buffers)
    for step in range(5):
        take(journal, buffers, 7)
        journal.close_step(np.zeros(4), 1.0, [1] if step == 2 else [])
    assert journal.state()["log"][1, :, 0, 0].tolist() == [7, 7, 0, 0, 0]
