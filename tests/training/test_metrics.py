"""Metrics of an epoch."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from engram.training.metrics import Averages


class Pair(NamedTuple):
    first: Tensor
    second: Tensor | None = None


def test_averages_are_means_by_name_and_are_reset_when_taken() -> None:
    averages = Averages()
    assert averages.take() == {}
    averages.add("a", Pair(torch.tensor(1.0, requires_grad=True)))
    averages.add("a", Pair(torch.tensor(4), torch.tensor(6.0)))
    averages.add("b", Pair(torch.tensor(5.0, dtype=torch.float64)))
    assert averages.take() == pytest.approx({"a/first": 2.5, "a/second": 6.0, "b/first": 5.0})
    assert averages.take() == {}
