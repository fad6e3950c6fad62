"""Differences between numbers that should be equal, and the tolerance for them."""

import torch
from torch import Tensor

EXACT = 1e-5  # largest difference between float32 numbers of size 1 that should be equal


def abs_difference(one: Tensor, other: Tensor) -> Tensor:
    """The absolute difference, elementwise; infinite where only one is infinite, or either is NaN."""
    return torch.where(one == other, 0.0, (one - other).abs().nan_to_num(nan=torch.inf))


def max_difference(one: Tensor, other: Tensor) -> float:
    return float(abs_difference(one, other).max()) if one.numel() else 0.0


def tolerance(*numbers: Tensor, exact: float = EXACT) -> float:
    """The largest difference that rounding explains between equal numbers of this size."""
    finite = [part[part.isfinite()].abs() for part in numbers]
    return exact * max(1.0, *(float(part.max()) if part.numel() else 0.0 for part in finite))
