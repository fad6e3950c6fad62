"""Compares policies on the same episodes: paired differences, intervals, and a test by random sign flips."""

# P policies, E episodes

import math
from itertools import combinations
from typing import NamedTuple

import numpy as np

from engram.training.estimate import Estimate, estimate

FLIPS = 20_000  # sampled sign flips; if there are fewer, all of them
BATCHES = 20  # sampled one after the other, to save memory


class Pair(NamedTuple):
    """The difference of the returns of `second` and `first` over the same episodes."""

    first: str
    second: str
    difference: Estimate
    p: float  # adjusted for the number of pairs (Holm)


def compare_pairs(returns: dict[str, np.ndarray]) -> list[Pair]:
    """All pairs of policies, from their returns [E] of the same episodes."""
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
