"""The paired comparison."""

import numpy as np
import pytest

from engram.cli.compare import sentence
from engram.runs.compare import compare_pairs, holm, sign_flip_test


def test_all_sign_flips_of_few_differences_are_counted():
    assert sign_flip_test(np.array([1.0, 2.0, 3.0])) == 2 / 8  # all signs equal
    assert sign_flip_test(np.array([1.0, -1.0])) == 1.0
    assert sign_flip_test(np.zeros(5)) == 1.0


def test_a_clear_difference_of_many_episodes_is_significant_and_none_is_not():
    generator = np.random.default_rng(1)
    noise = generator.normal(size=200)
    assert sign_flip_test(noise + 1) < 0.001
    assert sign_flip_test(noise - noise.mean()) > 0.9


def test_p_values_are_adjusted_for_their_number():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_pairs_compare_the_same_episodes():
    first = np.arange(20.0)
    (pair,) = compare_pairs({"a": first, "b": first + 1})
    assert (pair.first, pair.second, pair.difference.mean, pair.difference.std) == ("a", "b", 1.0, 0.0)
    assert pair.p < 0.001
    assert sentence(pair._asdict() | {"difference": pair.difference._asdict()}).startswith("b is better than a by 1")
