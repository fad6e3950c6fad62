"""How far a run has come."""

import pytest

from engram.training.progress import Progress


def shares(batch_size, total_timesteps):
    """What every epoch of a run is told."""
    progress, told = Progress(), []
    while progress.steps < total_timesteps:
        told.append(progress.fraction(batch_size, total_timesteps))
        progress.advance(batch_size)
    return told


@pytest.mark.parametrize("total_timesteps", [1, 1000, 4096, 5000, 12288, 12289])
def test_every_epoch_is_told_its_middle_though_the_last_one_ends_later_than_asked_for(total_timesteps):
    told = shares(4096, total_timesteps)
    assert told == pytest.approx([(epoch + 0.5) / len(told) for epoch in range(len(told))])


def test_a_run_that_goes_on_for_longer_is_told_of_the_whole():
    assert Progress(steps=4096, epoch=1).fraction(4096, 10_000) == pytest.approx(0.5)
