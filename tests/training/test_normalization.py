"""The statistics by which a policy normalises follow its rollouts."""

from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict

from engram.agent.normalization import ValueNormalizer
from engram.training.experience import Experience
from engram.training.normalization import begin_value_normalization, is_first_update, mean_and_variance, return_scale
from engram.training.settings import PPO

ROWS, HORIZON = 4, 16


def rollout_of_equal_rewards(reward: float) -> Experience:
    """A rollout without an episode's end, by an untrained critic."""
    spec = TensorDict({"env_obs": torch.zeros(2)}, [])
    experience = Experience(ROWS, ROWS * HORIZON, HORIZON, HORIZON, spec)
    for fields in (experience.buffer, experience.bootstrap):
        fields["rewards"].fill_(reward)
        fields["values"].normal_()
    experience.buffer["alive"].fill_(True)
    experience.buffer["ratio"].fill_(1)
    return experience


@pytest.mark.parametrize("reward", [1.0, -6.0])
def test_a_new_critic_predicts_the_return_of_a_task_that_is_longer_than_its_first_rollout(reward: float) -> None:
    torch.manual_seed(0)
    agent = SimpleNamespace(policy=SimpleNamespace(value_normalizer=ValueNormalizer()))
    experience = rollout_of_equal_rewards(reward)
    begin_value_normalization(agent, experience, PPO(gamma=0.98))
    assert agent.policy.value_normalizer.mean.item() == pytest.approx(50 * reward, rel=0.1)
    assert experience.buffer["values"].mean().item() == pytest.approx(50 * reward, rel=0.1)


def test_the_first_rollout_whose_returns_differ_gives_the_unit_of_values() -> None:
    torch.manual_seed(0)
    agent = SimpleNamespace(policy=SimpleNamespace(value_normalizer=ValueNormalizer()))
    normalizer, experience = agent.policy.value_normalizer, rollout_of_equal_rewards(-1.0)
    outputs = experience.buffer["values"].clone()
    begin_value_normalization(agent, experience, PPO(gamma=0.9))
    assert is_first_update(agent)
    torch.testing.assert_close(normalizer.inverse(experience.buffer["values"]), outputs, rtol=1e-2, atol=1e-2)
    experience.buffer["rewards"][0, 8] = 50.0
    begin_value_normalization(agent, experience, PPO(gamma=0.9))
    assert not is_first_update(agent)
    assert return_scale(agent, True).value_unit > 1
    torch.testing.assert_close(normalizer.inverse(experience.buffer["values"]), outputs, rtol=1e-2, atol=1e-2)


def test_values_and_the_floor_of_advantages_have_units_only_if_returns_are_normalised() -> None:
    agent = SimpleNamespace(policy=SimpleNamespace(value_normalizer=ValueNormalizer()))
    agent.policy.value_normalizer.begin(torch.tensor(0.0), torch.tensor(9.0))
    agent.policy.value_normalizer.update(torch.tensor(0.0), torch.tensor(1.0), None)
    assert return_scale(agent, True).value_unit < return_scale(agent, True).largest_std == 3
    assert return_scale(agent, False) == (1, 1)


def test_statistics_of_returns_are_those_of_the_masked_steps() -> None:
    returns, mask = torch.tensor([[3.0, -4.0, 1e9]]), torch.tensor([[True, True, False]])
    assert mean_and_variance(returns, mask) == (-0.5, 12.25)
