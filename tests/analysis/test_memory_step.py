"""Differences between action distributions."""

import math

import numpy as np
import torch
from tensordict import TensorDict

from engram.agent.actions import CategoricalActions, GaussianActions, MultiCategoricalActions
from engram.analysis.memory_step import MEAN_NOISE, distributions, entropy, total_variation


def test_total_variation_of_two_categorical_distributions():
    first, second = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]), torch.tensor([[0.25, 0.25, 0.5], [0.0, 0.0, 1.0]])
    torch.testing.assert_close(total_variation(CategoricalActions(3), first, second), torch.tensor([0.5, 1.0]))


def test_of_several_actions_the_one_that_changes_most_counts():
    first, second = torch.tensor([[0.5, 0.5, 1.0, 0.0]]), torch.tensor([[0.4, 0.6, 0.7, 0.3]])
    torch.testing.assert_close(total_variation(MultiCategoricalActions([2, 2]), first, second), torch.tensor([0.3]))


def test_a_continuous_distribution_is_read_from_the_sample_at_its_mean():
    actions, logits = GaussianActions((2,)), torch.tensor([[0.3, -1.0, math.log(0.5), math.log(2.0)]])
    sample = actions.sample(logits, torch.full((1, 2), MEAN_NOISE))
    td = TensorDict({"actions": sample.actions, "full_log_probs": sample.full_log_probs}, [1])
    found = distributions(actions, td)
    torch.testing.assert_close(found, torch.tensor([[0.3, -1.0, 0.5, 2.0]]))
    torch.testing.assert_close(entropy(actions, found), actions.evaluate(logits, sample.actions).entropy)


def test_total_variation_of_two_normal_distributions_is_the_area_between_them():
    grid = np.linspace(-12, 12, 100_001)

    def density(mean: float) -> np.ndarray:
        return np.exp(-(((grid - mean) / 1.5) ** 2) / 2) / (1.5 * math.sqrt(2 * math.pi))

    area = np.abs(density(0.0) - density(2.0)).sum() * (grid[1] - grid[0]) / 2
    found = total_variation(GaussianActions((1,)), torch.tensor([[0.0, 1.5]]), torch.tensor([[2.0, 1.5]]))
    np.testing.assert_allclose(found, [area], rtol=1e-4)
