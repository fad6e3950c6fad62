"""Counter-based random numbers and the seeds of episodes."""

import numpy as np

from engram.env.splitmix import below, episode_seed, fold, mix, uniform


def test_arrays_and_ints_are_mixed_alike():
    numbers = [0, 1, 2**31, 2**63, 2**64 - 1]
    assert mix(np.array(numbers, np.uint64)).tolist() == [mix(number) for number in numbers]


def test_random_numbers_are_uniform_and_uncorrelated():
    keys = fold(np.zeros(100_000, np.uint64), np.arange(100_000))
    numbers = uniform(keys, 0)
    assert 0 <= numbers.min() < numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.005
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.015
    assert abs(np.corrcoef(numbers, uniform(keys, 1))[0, 1]) < 0.015
    assert np.bincount(below(keys, 2, 7)).min() > 100_000 / 7 * 0.95


def test_episode_seeds_are_fixed_and_fit_31_bits():
    # Written down, because a saved run is resumed from these.
    assert [episode_seed(0, 0, 0), episode_seed(1, 2, 3), episode_seed(-1, 0, 0)] == [297876190, 1748607912, 2114065284]
    assert all(0 <= episode_seed(7, i, k) < 2**31 for i in range(20) for k in range(20))


def test_episodes_of_all_environments_have_different_seeds():
    seeds = {episode_seed(seed, i, k) for seed in range(5) for i in range(20) for k in range(20)}
    assert len(seeds) == 5 * 20 * 20
