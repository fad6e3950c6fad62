"""Normalisation of observations and values."""

import pytest
import torch
from torch import nn

from engram.agent.normalization import ObservationNormalizer, ValueNormalizer


def test_observations_get_zero_mean_and_unit_variance_over_all_updates() -> None:
    torch.manual_seed(0)
    normalizer, batches = ObservationNormalizer(3), [torch.randn(500, 3) * 4 + 7, torch.randn(300, 3) - 2]
    for batch in batches:
        normalizer.update(torch.tensor(float(len(batch))), batch.mean(0), batch.var(0, correction=0))
    everything = torch.cat(batches)
    torch.testing.assert_close(normalizer.mean, everything.mean(0))
    torch.testing.assert_close(normalizer.variance, everything.var(0, correction=0))
    normalized = normalizer(everything)
    assert normalized.mean().abs().item() < 1e-4
    assert normalized.std().item() == pytest.approx(1, abs=1e-2)


def test_observations_are_unchanged_before_the_first_update_but_for_clipping() -> None:
    x = torch.tensor([[0.5, -3.0, 1e6]])
    torch.testing.assert_close(ObservationNormalizer(3)(x), torch.tensor([[0.5, -3.0, 10.0]]))


def test_values_stay_the_same_when_their_statistics_change() -> None:
    torch.manual_seed(0)
    normalizer, layer, features = ValueNormalizer(), nn.Linear(8, 1), torch.randn(20, 8)
    normalizer.begin(torch.tensor(5.0), torch.tensor(4.0))
    assert (normalizer.mean.item(), normalizer.std.item()) == (5.0, 2.0)
    before = normalizer(layer(features))
    normalizer.update(torch.tensor(-40.0), torch.tensor(3400.0), layer)
    assert normalizer.std.item() != 2.0
    torch.testing.assert_close(normalizer(layer(features)), before, rtol=1e-5, atol=1e-5)


def test_an_untrained_critic_begins_with_the_mean_return() -> None:
    normalizer = ValueNormalizer()
    normalizer.begin(torch.tensor(-800.0), torch.tensor(100.0))
    assert normalizer(torch.zeros(1)).item() == -800


def test_equal_returns_of_a_solved_task_do_not_shrink_the_unit_of_values_to_rounding() -> None:
    normalizer = ValueNormalizer()
    normalizer.begin(torch.tensor(0.0), torch.tensor(9.0))
    for _ in range(50):
        normalizer.update(torch.tensor(0.0), torch.tensor(0.0), None)
    assert normalizer.std == 1.5
    assert normalizer.largest_std == 3


def test_equal_returns_do_not_divide_by_zero() -> None:
    normalizer = ValueNormalizer()
    normalizer.begin(torch.tensor(3.0), torch.tensor(0.0))
    assert normalizer(torch.ones(1)).isfinite().all()


@pytest.mark.parametrize("mean", [0.0, -100.0, 1e4])
def test_statistics_begin_again_until_returns_differ(mean: float) -> None:
    normalizer = ValueNormalizer()
    for variance, begun in ((0.0, 0), (1e-9, 0), (mean**2 + 1, 1)):
        normalizer.begin(torch.tensor(mean), torch.tensor(variance))
        assert normalizer.updates == begun
    assert normalizer.std.square().item() == pytest.approx(mean**2 + 1)


def test_a_small_spread_around_a_large_mean_is_not_lost_to_rounding() -> None:
    normalizer = ValueNormalizer()
    normalizer.begin(torch.tensor(1e4), torch.tensor(400.0))
    normalizer.update(torch.tensor(1e4), torch.tensor(400.0), None)
    assert normalizer.std.item() == pytest.approx(20)


def test_the_variance_of_two_rollouts_counts_the_distance_of_their_means() -> None:
    normalizer = ValueNormalizer()
    normalizer.begin(torch.tensor(0.0), torch.tensor(1.0))
    normalizer.update(torch.tensor(4.0), torch.tensor(1.0), None)
    assert (normalizer.mean.item(), normalizer.variance.item()) == (2.0, 5.0)


def test_the_inverse_gives_the_output_of_a_value() -> None:
    normalizer = ValueNormalizer()
    normalizer.begin(torch.tensor(5.0), torch.tensor(4.0))
    torch.testing.assert_close(normalizer.inverse(normalizer(torch.tensor([-1.0, 3.0]))), torch.tensor([-1.0, 3.0]))
