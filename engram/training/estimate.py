"""Means with 95% confidence intervals, by Student's t-distribution."""

import math
from typing import NamedTuple

import numpy as np

NORMAL = 1.959963984540054  # the 97.5% quantile of the normal distribution
STUDENT = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706)  # those of Student's t with 1 to 5 degrees of freedom


class Estimate(NamedTuple):
    """The mean of independent values. For a single value, interval and deviation are None."""

    mean: float
    low: float | None  # bounds of the 95% confidence interval
    high: float | None
    std: float | None  # of the values


def estimate(values: np.ndarray) -> Estimate | None:
    """Estimate the mean of values [N], ignoring NaNs; None if all are NaN."""
    known = values[~np.isnan(values)].astype(np.float64)
    if not len(known):
        return None
    mean = float(known.mean())
    if len(known) == 1:
        return Estimate(mean, None, None, None)
    std = float(known.std(ddof=1))
    margin = quantile(len(known) - 1) * std / math.sqrt(len(known))
    return Estimate(mean, mean - margin, mean + margin, std)


def quantile(freedom: int) -> float:
    """The 97.5% quantile of Student's t: a short table, then the Cornish-Fisher expansion."""
    if freedom <= len(STUDENT):
        return STUDENT[freedom - 1]
    z = NORMAL
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
