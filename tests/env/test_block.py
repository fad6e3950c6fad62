"""Rows, episodes and seeds: what every adapter builds on."""

import pickle

import numpy as np

from engram.env.block import Buffers, Episodes, episode_seed
from engram.env.recall import spec
from engram.env.settings import Recall


def episodes(rows, **stats):
    count = len(rows)
    stats = {name: np.array(values, np.float32) for name, values in stats.items()}
    return Episodes(np.array(rows), np.ones(count, np.float32), np.ones(count, np.int32), stats)


def test_some_rows_are_a_view_of_all():
    buffers = Buffers.allocate(spec(Recall()), rows=5)
    part = buffers.rows(2, 4)
    part.observations[:] = 1.0
    part.actions[:] = 3
    assert buffers.observations.sum(1).tolist() == [0, 0, 6, 6, 0]
    assert buffers.actions.tolist() == [0, 0, 3, 3, 0]
    assert part.observations.flags.c_contiguous


def test_buffers_have_the_layout_they_announce():
    buffers = Buffers.allocate(spec(Recall()), rows=5)
    for name, (shape, dtype) in Buffers.layout(spec(Recall()), 5).items():
        assert (getattr(buffers, name).shape, getattr(buffers, name).dtype) == (shape, dtype)


def test_joined_episodes_have_nan_where_one_has_no_such_stat():
    joined = Episodes.concatenate([episodes([3], a=[1.0]), Episodes.none(), episodes([1, 2], b=[5.0, 6.0])])
    assert joined.rows.tolist() == [3, 1, 2]
    np.testing.assert_array_equal(joined.stats["a"], [1.0, np.nan, np.nan])
    np.testing.assert_array_equal(joined.stats["b"], [np.nan, 5.0, 6.0])


def test_episodes_are_the_same_after_a_pickle():
    stats = {"hearts": np.array([2.0, np.nan], np.float32)}
    episodes = Episodes(np.array([3, 7]), np.array([0.5, -1], np.float32), np.array([9, 4], np.int32), stats)
    others = Episodes(np.array([3, 7], np.int32), np.array([0.5, -1]), np.array([9, 4]), stats)  # of other types
    for sent in (episodes, others):
        received = pickle.loads(pickle.dumps(sent))
        for name in ("rows", "returns", "lengths"):
            np.testing.assert_array_equal(getattr(received, name), getattr(episodes, name), strict=True)
        np.testing.assert_array_equal(received.stats["hearts"], stats["hearts"], strict=True)
    assert len(pickle.loads(pickle.dumps(Episodes.none()))) == 0


def test_no_episodes_joined_are_none():
    assert len(Episodes.concatenate([])) == len(Episodes.concatenate([Episodes.none()])) == 0


def test_the_seed_of_an_episode_never_changes_and_fits_31_bits():
    # Written down, because a saved run is resumed from these.
    assert [episode_seed(0, 0, 0), episode_seed(1, 2, 3), episode_seed(-1, 0, 0)] == [297876190, 1748607912, 2114065284]
    assert all(0 <= episode_seed(7, i, k) < 2**31 for i in range(20) for k in range(20))


def test_episodes_of_all_environments_have_different_seeds():
    seeds = {episode_seed(seed, i, k) for seed in range(5) for i in range(20) for k in range(20)}
    assert len(seeds) == 5 * 20 * 20
