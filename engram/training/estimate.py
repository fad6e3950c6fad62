"""Means that say how well they are known: 95% confidence intervals by Student's t."""

import math
from typing import NamedTuple

import numpy as np

NORMAL = 1.959963984540054  # what 2.5% of a normal distribution lie above
FEW = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706)  # the same for Student's t with 1 to 5 degrees of freedom


class Estimate(NamedTuple):
    """A mean of independent values. What one value alone cannot tell is None."""

    mean: float
    low: float | None  # ends of the 95% interval of the mean
    high: float | None
    std: float | None  # of the values


def estimate(values: np.ndarray) -> Estimate | None:
    """The mean of values [N], those that are NaN left out; None if there are no others."""
    known = values[~np.isnan(values)].astype(np.float64)
    if not len(known):
        return None
    mean = float(known.mean())
    if len(known) == 1:
        return Estimate(mean, None, None, None)
    std = float(known.std(ddof=1))
    reach = quantile(len(known) - 1) * std / math.sqrt(len(known))
    return Estimate(mean, mean - reach, mean + reach, std)


def quantile(freedom: int) -> float:
    """What 2.5% of Student's t lie above: a short table, then the expansion about the normal distribution."""
    if freedom <= len(FEW):
        return FEW[freedom - 1]
    z = NORMAL
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
