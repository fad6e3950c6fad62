"""How far numbers that should be equal are apart, and how far they may be."""

import torch
from torch import Tensor

EXACT = 1e-5  # largest difference between float32 numbers of size 1 that should be equal


def abs_difference(one: Tensor, other: Tensor) -> Tensor:
    """Infinite where only one is infinite, or either is NaN."""
    return torch.where(one == other, 0.0, (one - other).abs().nan_to_num(nan=torch.inf))


def max_difference(one: Tensor, other: Tensor) -> float:
    return float(abs_difference(one, other).max()) if one.numel() else 0.0


def tolerance(*numbers: Tensor, exact: float = EXACT) -> float:
    """Largest difference between numbers of this size that should be equal."""
    finite = [part[part.isfinite()].abs() for part in numbers]
    return exact * max(1.0, *(float(part.max()) if part.numel() else 0.0 for part in finite))
