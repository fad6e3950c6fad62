"""Progress of a run and metrics of an epoch."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from engram.training.metrics import Averages, Progress, fraction_changed


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


def fractions(batch_size, total_timesteps):
    """The fraction at every epoch of a run."""
    progress, found = Progress(), []
    while progress.steps < total_timesteps:
        found.append(progress.fraction(batch_size, total_timesteps))
        progress.advance(batch_size)
    return found


@pytest.mark.parametrize("total_timesteps", [1, 1000, 4096, 5000, 12288, 12289])
def test_the_fraction_of_an_epoch_is_its_middle_even_if_the_run_ends_after_total_timesteps(total_timesteps):
    found = fractions(4096, total_timesteps)
    assert found == pytest.approx([(epoch + 0.5) / len(found) for epoch in range(len(found))])


def test_the_fraction_of_an_extended_run_counts_all_its_steps():
    assert Progress(steps=4096, epoch=1).fraction(4096, 10_000) == pytest.approx(0.5)


NO, YES = False, True


@pytest.mark.parametrize(
    ("observations", "starts", "expected"),
    [
        ([[1, 1, 1, 1]], [[YES, NO, NO, NO]], 0.0),
        ([[1, 1, 2, 2]], [[YES, NO, NO, NO]], 1 / 3),
        ([[1, 1, 2, 2]], [[YES, NO, YES, NO]], 0.0),  # a new episode is no change
        ([[1, 2, 3, 4], [5, 5, 5, 5]], [[NO, NO, NO, NO], [NO, NO, NO, NO]], 0.5),
        ([[1, 2, 3]], [[YES, YES, YES]], None),  # episodes of one step
        ([[1]], [[NO]], None),
    ],
)
def test_changes_are_counted_inside_episodes(observations, starts, expected):
    found = fraction_changed(torch.tensor(observations).unsqueeze(-1), torch.tensor(starts))
    assert found == (None if expected is None else pytest.approx(expected))
