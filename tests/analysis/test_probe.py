"""Linear probes, on planted facts."""

import numpy as np
import pytest
from gymnasium import spaces

from engram.analysis.probe import explained_variance, observation_features, scores
from engram.env.parts import describe_parts
from engram.env.spec import EnvSpec


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def test_a_planted_fact_is_read_and_a_shuffled_one_is_not(rng):
    memory, groups = rng.normal(size=(80, 30)), np.arange(80)
    fact = (memory @ rng.normal(size=30) > 0).astype(float)
    (found,) = scores(memory, rng.normal(size=(80, 4)), [fact], groups)
    assert found.memory > 0.8
    assert abs(found.control - 0.5) < 0.15
    assert abs(found.observation - 0.5) < 0.2


def test_rare_values_do_not_look_like_accuracy(rng):
    fact = (np.arange(100) < 10).astype(float)  # always guessing 0 would be right nine times in ten
    (found,) = scores(rng.normal(size=(100, 20)), np.zeros((100, 1)), [fact], np.arange(100))
    assert found.memory < 0.7
    assert found.observation == 0.5


def test_a_number_is_scored_by_explained_variance(rng):
    memory = rng.normal(size=(120, 5))
    (found,) = scores(memory, rng.normal(size=(120, 5)), [2 * memory[:, 0] + 1], np.arange(120))
    assert found.memory > 0.9
    assert found.observation < 0.1
    assert found.control < 0.1


def test_episodes_are_held_out_as_a_whole(rng):
    groups = np.repeat(np.arange(40), 5)
    memory = np.eye(40)[groups] + 0.01 * rng.normal(size=(200, 40))  # tells the episode, and nothing of the fact
    fact = rng.integers(0, 2, 40)[groups].astype(float)
    (found,) = scores(memory, memory, [fact], groups)
    assert found.memory < 0.75


def test_facts_that_are_unknown_or_hardly_vary_have_no_score(rng):
    memory, groups = rng.normal(size=(60, 3)), np.arange(60)
    once, unknown = np.zeros(60), np.full(60, np.nan)
    once[0], unknown[:9] = 1, np.arange(9)
    assert scores(memory, memory, [once, unknown, np.ones(60)], groups) == [None, None, None]


def test_explained_variance_of_many_targets(rng):
    inputs, groups = rng.normal(size=(200, 6)), np.arange(200)
    targets = np.stack([inputs[:, 0], rng.normal(size=200), np.zeros(200)], axis=1)
    assert explained_variance(inputs, targets, groups) == pytest.approx(0.5, abs=0.1)
    assert explained_variance(inputs, targets[:, 2:], groups) is None


@pytest.mark.parametrize(("kinds", "chance"), [(2, 0.5), (3, 0.0)])
def test_facts_that_shuffling_makes_equal_have_a_control_at_chance(rng, kinds, chance):
    fact = (np.arange(200) % 5 % kinds).astype(float)  # the first sample of every episode is 0
    memory = np.eye(kinds)[fact.astype(int)] + 0.1 * rng.normal(size=(200, kinds))
    (found,) = scores(memory, np.zeros((200, 1)), [fact], np.repeat(np.arange(40), 5))
    assert found.memory > 0.9
    assert found.control == chance


def test_features_are_named_by_their_place_in_the_observation():
    space = spaces.Dict(
        {
            "board": spaces.Box(0, 3, (2, 2), np.int64),
            "card": spaces.Discrete(3),
            "eye": spaces.Box(0, 255, (16, 16, 3), np.uint8),
            "speed": spaces.Box(-1, 1, (2,)),
        }
    )
    spec = EnvSpec.of_parts("table", describe_parts(space, "table", False, list), spaces.Discrete(2))
    shape, dtype = spec.row
    features, names = observation_features(spec, np.zeros((5, *shape), dtype))
    assert features.shape == (5, len(names))
    assert names[:5] == ["board[0, 0, 0]", "board[0, 1, 0]", "board[1, 0, 0]", "board[1, 1, 0]", "card"]
    assert names[5:7] == ["eye[0, 0]", "eye[0, 1]"]
    assert names[-2:] == ["speed[0]", "speed[1]"]
