"""The loss against sums done by hand."""

import math

import pytest
import torch

from engram.native.library import kernels, without_kernels
from engram.training.advantage import normalize
from engram.training.ppo import ppo_loss
from engram.training.settings import PPO


def losses(ratio=1.0, advantage=1.0, value=0.0, old_value=0.0, returns=0.0, weights=None, entropy=0.0, **settings):
    count = 1 if weights is None else len(weights)

    def full(x: float | list[float]) -> torch.Tensor:
        return torch.tensor([x if isinstance(x, list) else [float(x)] * count])

    return ppo_loss(
        log_prob=full(math.log(ratio)),
        entropy=full(entropy),
        value=full(value),
        old_log_prob=full(0.0),
        old_value=full(old_value),
        advantages=full(advantage),
        returns=full(returns),
        weights=full(1.0 if weights is None else weights),
        settings=PPO(**settings),
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.0, 2.0, -2.0), (1.5, 2.0, -2.2), (0.5, 2.0, -1.0), (1.5, -2.0, 3.0), (0.5, -2.0, 1.8)],
)
def test_the_policy_term_is_clipped_only_where_it_would_gain(ratio: float, advantage: float, expected: float) -> None:
    assert losses(ratio, advantage, clip_coef=0.1).policy.item() == pytest.approx(expected)


def test_the_value_term_takes_the_worse_of_clipped_and_free() -> None:
    assert losses(value=1.0, old_value=0.0, returns=1.0, vf_clip_coef=0.1).value.item() == pytest.approx(0.5 * 0.81)
    assert losses(value=1.0, old_value=0.0, returns=1.0, vf_clip_coef=None).value.item() == 0


def test_the_total_adds_up() -> None:
    loss = losses(advantage=2.0, value=1.0, vf_clip_coef=None, entropy=3.0, vf_coef=0.5, ent_coef=0.1)
    assert loss.total.item() == pytest.approx(-2.0 + 0.5 * 0.5 - 0.1 * 3)


def test_steps_of_weight_zero_do_not_count() -> None:
    alone = losses(advantage=[2.0, 2.0], weights=[1.0, 1.0])
    beside = losses(advantage=[2.0, 2.0, 99.0], weights=[1.0, 1.0, 0.0])
    assert beside.total.item() == pytest.approx(alone.total.item())


def test_normalised_advantages_have_mean_zero_and_deviation_one_over_the_masked_steps() -> None:
    advantages = torch.randn(8, 16) * 3 + 2
    there = torch.rand(8, 16) < 0.7
    advantages[~there] = 1e9
    result = normalize(advantages, there)[there]
    assert result.mean().item() == pytest.approx(0, abs=1e-5)
    assert result.std().item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("size", [0.01, 1.0, 300.0])
def test_in_units_of_the_returns_losses_do_not_depend_on_the_scale_of_rewards(size: float) -> None:
    values, old_values, returns = torch.randn(3, 8, 16)
    mask = torch.rand(8, 16) < 0.7
    expected, found = (
        ppo_loss(
            *torch.zeros(2, 8, 16), values * k, torch.zeros(8, 16), old_values * k, values, returns * k, mask.float(),
            PPO(), value_unit=returns.std() * k,
        )
        for k in (1.0, size)
    )  # fmt: skip
    assert found.total.item() == pytest.approx(expected.total.item(), rel=1e-5)


def test_advantages_with_a_small_spread_are_not_scaled_up() -> None:
    advantages, there = torch.randn(8, 16) * 0.01, torch.ones(8, 16, dtype=torch.bool)
    spread = advantages.std()
    assert normalize(advantages, there, minimum=0.5).std().item() == pytest.approx(spread.item() / 0.5, rel=1e-4)
    torch.testing.assert_close(normalize(advantages, there, minimum=spread / 2), normalize(advantages, there))
    assert normalize(torch.zeros(2, 2), torch.ones(2, 2, dtype=torch.bool)).abs().max().item() == 0


@pytest.mark.skipif(kernels() is None, reason="there is no compiler, or the kernels are switched off")
@pytest.mark.parametrize("vf_clip_coef", [None, 0.3])
def test_kernels_equal_pytorch(vf_clip_coef: float | None) -> None:
    torch.manual_seed(0)
    now = [(torch.randn(16, 64) * 0.4).requires_grad_() for _ in range(3)]
    stored = [torch.randn(64, 16).t() * size for size in (0.4, 0.4, 2.0, 1.0)]  # rows that lie apart
    weights = torch.rand(16, 64) * (torch.rand(16, 64) < 0.8)

    def results() -> tuple[torch.Tensor, ...]:
        loss = ppo_loss(*now, *stored, weights, PPO(vf_clip_coef=vf_clip_coef), value_unit=torch.tensor(3.0))
        return *(x for x in loss if x is not None), *torch.autograd.grad(loss.total, now)

    with without_kernels():
        theirs = results()
    torch.testing.assert_close(results(), theirs)


def test_a_nan_is_not_hidden() -> None:
    assert losses(value=math.nan).total.isnan()
    assert losses(advantage=math.nan).total.isnan()
    assert losses(entropy=math.nan).total.isnan()


def test_weights_may_be_given_once_for_a_segment() -> None:
    torch.manual_seed(0)
    now = [torch.randn(4, 8, requires_grad=True) for _ in range(3)]
    stored = [torch.randn(4, 8) for _ in range(4)]
    weights = torch.rand(4, 1)
    totals = [
        ppo_loss(*now, *stored, each, PPO(), size=torch.tensor(32.0)).total for each in (weights, weights.expand(4, 8))
    ]
    once, every = ((total, *torch.autograd.grad(total, now)) for total in totals)
    torch.testing.assert_close(once, every)
