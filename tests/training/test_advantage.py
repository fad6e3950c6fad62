"""Advantages against sums done by hand, and against those of another library."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engram.training.advantage import vtrace


def advantages(values, next_values, rewards, ends, ratio=None, **settings) -> Tensor:
    values, next_values, rewards = (torch.tensor([x], dtype=torch.float64) for x in (values, next_values, rewards))
    ends = torch.tensor([ends], dtype=torch.bool)
    ratio = torch.ones_like(values) if ratio is None else torch.tensor([ratio], dtype=torch.float64)
    return vtrace(
        values, next_values, rewards, ends, ratio, **{"gamma": 0.5, "gae_lambda": 0.5, **settings}
    ).advantages[0]


def test_every_step_counts_and_the_last_is_bootstrapped() -> None:
    # deltas: 1 + 0.5*2 - 1 = 1, 0 + 0.5*4 - 2 = 0, 2 + 0.5*6 - 4 = 1; carry 0.25
    result = advantages([1, 2, 4], [2, 4, 6], [1, 0, 2], [False, False, False])
    assert result.tolist() == [1 + 0.25 * 0.25, 0.25, 1]


def test_nothing_is_carried_back_over_an_episode_end() -> None:
    # the second step ends the episode and its next value is 0
    result = advantages([1, 2, 4], [2, 0, 6], [1, 5, 2], [False, True, False])
    assert result.tolist() == [1 + 0.25 * 3, 3, 1]


def test_a_truncated_step_is_bootstrapped_from_its_final_observation() -> None:
    result = advantages([1, 2], [8, 0], [1, 0], [True, True])
    assert result.tolist() == [1 + 0.5 * 8 - 1, -2]


def test_ratios_are_clipped_separately_for_the_target_and_for_the_trace() -> None:
    # rho = min(ratio, 1.5), c = min(ratio, 1)
    result = advantages([0, 0], [0, 0], [1, 1], [False, False], ratio=[2.0, 0.5], rho_clip=1.5, c_clip=1.0)
    assert result.tolist() == [1.5 + 0.25 * 1.0 * 0.5, 0.5]


def test_with_lambda_one_the_advantage_is_the_discounted_return_less_the_value() -> None:
    result = advantages([3, 1, 2], [1, 2, 7], [1, 2, 3], [False] * 3, gae_lambda=1.0)
    discounted = 1 + 0.5 * (2 + 0.5 * (3 + 0.5 * 7))
    assert result[0].item() == pytest.approx(discounted - 3)


def test_returns_are_values_plus_advantages() -> None:
    values = torch.randn(3, 5)
    result = vtrace(values, torch.randn(3, 5), torch.randn(3, 5), torch.rand(3, 5) < 0.3, torch.ones(3, 5), 0.9, 0.8)
    torch.testing.assert_close(result.returns, result.advantages + values)


RECORDED = json.loads((Path(__file__).parent / "recorded" / "torchrl_advantages.json").read_text())


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda case: f"{len(case['values'][0])} steps")
def test_advantages_equal_those_of_torchrl(case) -> None:
    """Without ratios GAE, also over truncations; with ratios and a lambda of 1 the targets of V-trace."""
    settings = ("gamma", "gae_lambda", "rho_clip", "c_clip")
    x = {
        name: torch.tensor(value, dtype=None if isinstance(value[0][0], bool) else torch.float64)
        for name, value in case.items()
        if name not in settings
    }
    gamma, gae_lambda, rho_clip, c_clip = (case[name] for name in settings)
    next_values = x["next_values"].where(~x["terminated"], 0)
    gae = vtrace(x["values"], next_values, x["rewards"], x["ends"], torch.ones_like(x["values"]), gamma, gae_lambda)
    torch.testing.assert_close(gae.advantages, x["gae"], rtol=0, atol=1e-12)
    torch.testing.assert_close(gae.returns, x["gae_returns"], rtol=0, atol=1e-12)
    next_values = x["following_values"].where(~x["terminated"], 0)
    targets = vtrace(
        x["values"], next_values, x["rewards"], x["terminated"], x["ratio"], gamma, 1.0, rho_clip, c_clip
    ).returns
    torch.testing.assert_close(targets, x["vtrace_returns"], rtol=0, atol=1e-12)
