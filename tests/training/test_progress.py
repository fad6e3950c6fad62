"""Progress of a run."""

import pytest

from engram.training.metrics import Progress


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
