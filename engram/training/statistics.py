"""Statistics of returns: means with 95% confidence intervals, and comparisons of policies on the same episodes."""

import math
from itertools import combinations
from typing import NamedTuple

import numpy as np

NORMAL_QUANTILE = 1.959963984540054  # the 97.5% quantile of the normal distribution
STUDENT_QUANTILES = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706)  # those of Student's t with 1 to 5 degrees of freedom

FLIPS = 20_000  # sampled sign flips; if there are fewer, all of them
BATCHES = 20  # sampled one after the other, to save memory


class Estimate(NamedTuple):
    """The mean of independent values. For a single value, interval and deviation are None."""

    mean: float
    low: float | None  # bounds of the 95% confidence interval
    high: float | None
    std: float | None  # of the values


class Pair(NamedTuple):
    """The difference of the returns of `second` and `first` over the same episodes."""

    first: str
    second: str
    difference: Estimate
    p: float  # adjusted for the number of pairs (Holm)


def estimate(values: np.ndarray) -> Estimate | None:
    """Estimate the mean of values [N], ignoring NaNs; None if all are NaN."""
    known = values[~np.isnan(values)].astype(np.float64)
    if not len(known):
        return None
    mean = float(known.mean())
    if len(known) == 1:
        return Estimate(mean, None, None, None)
    std = float(known.std(ddof=1))
    margin = student_quantile(len(known) - 1) * std / math.sqrt(len(known))
    return Estimate(mean, mean - margin, mean + margin, std)


def student_quantile(freedom: int) -> float:
    """The 97.5% quantile of Student's t by degrees of freedom: a short table, then the Cornish-Fisher expansion."""
    if freedom <= len(STUDENT_QUANTILES):
        return STUDENT_QUANTILES[freedom - 1]
    z = NORMAL_QUANTILE
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def compare_pairs(returns: dict[str, np.ndarray]) -> list[Pair]:
    """All pairs of policies, from their returns of the same episodes."""
    pairs = [(first, second, returns[second] - returns[first]) for first, second in combinations(returns, 2)]
    adjusted = holm([sign_flip_test(difference) for _, _, difference in pairs])
    found = []
    for (first, second, difference), p in zip(pairs, adjusted, strict=True):
        value = estimate(difference)
        assert value is not None
        found.append(Pair(first, second, value, p))
    return found


def sign_flip_test(differences: np.ndarray) -> float:
    """Probability of a mean difference at least this large if the sign of each were random."""
    nonzero = differences[differences != 0].astype(np.float64)
    count = len(nonzero)
    if not count:
        return 1.0
    observed = abs(nonzero.sum()) * (1 - 1e-12)  # equal sums must count, however they are rounded
    if count <= math.floor(math.log2(FLIPS)):
        signs = 1 - 2 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
        return float((np.abs(signs @ nonzero) >= observed).mean())
    generator, extreme = np.random.default_rng(0), 0
    for _ in range(BATCHES):
        signs = generator.integers(0, 2, (FLIPS // BATCHES, count), dtype=np.int8) * 2 - 1
        extreme += int((np.abs(signs @ nonzero) >= observed).sum())
    return (extreme + 1) / (FLIPS + 1)


def holm(values: list[float]) -> list[float]:
    """p-values adjusted for multiple comparisons by Holm's step-down method."""
    order = np.argsort(values)
    adjusted, largest = [0.0] * len(values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = largest
    return adjusted
