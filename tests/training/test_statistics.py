"""Means with confidence intervals, and paired comparisons."""

import numpy as np
import pytest

from engram.cli.compare import sentence
from engram.training.statistics import compare_pairs, estimate, holm, sign_flip_test, student_quantile


def test_mean_interval_and_deviation_match_a_hand_computation() -> None:
    # Of 1, 2, 3, 4: mean 2.5, deviation sqrt(5/3), and 3.1824 x sqrt(5/3) / 2 to either side.
    found = estimate(np.array([1.0, 2.0, 3.0, 4.0]))
    assert found is not None
    assert found.mean == 2.5
    assert found.std == pytest.approx(1.2909944)
    assert (found.low, found.high) == pytest.approx((2.5 - 2.0542, 2.5 + 2.0542), abs=1e-3)


def test_a_single_value_has_no_interval_or_deviation() -> None:
    assert estimate(np.array([3.0])) == (3.0, None, None, None)


def test_nans_are_ignored() -> None:
    assert estimate(np.array([np.nan, 2.0, np.nan, 2.0])) == (2.0, 2.0, 2.0, 0.0)
    assert estimate(np.array([np.nan])) is None
    assert estimate(np.zeros(0)) is None


@pytest.mark.parametrize(
    ("freedom", "known"), [(1, 12.706), (5, 2.571), (6, 2.447), (9, 2.262), (30, 2.042), (99, 1.984), (9999, 1.960)]
)
def test_quantiles_match_published_tables(freedom: int, known: float) -> None:
    assert student_quantile(freedom) == pytest.approx(known, abs=2e-3)


def test_about_19_of_20_intervals_hold_the_true_mean() -> None:
    random = np.random.default_rng(0)
    samples = [estimate(random.normal(3.0, 2.0, 8)) for _ in range(2000)]
    held = [s is not None and s.low is not None and s.high is not None and s.low <= 3.0 <= s.high for s in samples]
    assert np.mean(held) == pytest.approx(0.95, abs=0.015)


def test_all_sign_flips_of_few_differences_are_counted() -> None:
    assert sign_flip_test(np.array([1.0, 2.0, 3.0])) == 2 / 8  # all signs equal
    assert sign_flip_test(np.array([1.0, -1.0])) == 1.0
    assert sign_flip_test(np.zeros(5)) == 1.0


def test_a_clear_difference_of_many_episodes_is_significant_and_none_is_not() -> None:
    generator = np.random.default_rng(1)
    noise = generator.normal(size=200)
    assert sign_flip_test(noise + 1) < 0.001
    assert sign_flip_test(noise - noise.mean()) > 0.9


def test_p_values_are_adjusted_for_their_number() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_pairs_compare_the_same_episodes() -> None:
    first = np.arange(20.0)
    (pair,) = compare_pairs({"a": first, "b": first + 1})
    assert (pair.first, pair.second, pair.difference.mean, pair.difference.std) == ("a", "b", 1.0, 0.0)
    assert pair.p < 0.001
    assert sentence(pair._asdict() | {"difference": pair.difference._asdict()}).startswith("b is better than a by 1")
