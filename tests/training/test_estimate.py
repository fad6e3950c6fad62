"""Means with confidence intervals."""

import numpy as np
import pytest

from engram.training.estimate import estimate, quantile


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
    assert quantile(freedom) == pytest.approx(known, abs=2e-3)


def test_about_19_of_20_intervals_hold_the_true_mean() -> None:
    random = np.random.default_rng(0)
    samples = [estimate(random.normal(3.0, 2.0, 8)) for _ in range(2000)]
    held = [s is not None and s.low is not None and s.high is not None and s.low <= 3.0 <= s.high for s in samples]
    assert np.mean(held) == pytest.approx(0.95, abs=0.015)
