"""Actions: what is sampled, how likely it was, and that both tell the same story."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from support.playing import vector_env
from torch import Tensor
from torch.distributions import Categorical, Normal

from engram import EnvSpec
from engram.agent.actions import ActionSpace, Flat, TypeAndParameter, make_actions
from engram.agent.categorical import choose


def actions_of(space: spaces.Space, max_params: tuple[int, ...] | None = None) -> ActionSpace:
    env = vector_env(actions=space)
    env.action_max_params = max_params
    return make_actions(EnvSpec.of(env))


SPACES = {
    "discrete": actions_of(spaces.Discrete(5)),
    "type and parameter": actions_of(spaces.MultiDiscrete([3, 3]), (0, 2, 1)),
    "factored": actions_of(spaces.MultiDiscrete([3, 2])),
    "continuous": actions_of(spaces.Box(-1, 1, (2, 2))),
}


def drawn(actions: ActionSpace, rows: int = 64, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(rows, actions.logits, generator=generator),
        torch.rand(rows, actions.noise, generator=generator),
    )


@pytest.mark.parametrize("actions", SPACES.values(), ids=SPACES.keys())
def test_the_log_probability_of_what_was_sampled_is_the_one_it_was_sampled_with(actions: ActionSpace) -> None:
    logits, noise = drawn(actions)
    sample = actions.sample(logits, noise)
    evaluation = actions.evaluate(logits, sample.actions)
    assert torch.equal(evaluation.log_prob, sample.log_prob)
    assert torch.equal(evaluation.full_log_probs, sample.full_log_probs)


def test_continuous_actions_far_from_zero_and_narrow_keep_their_log_probability() -> None:
    actions = SPACES["continuous"]
    _, noise = drawn(actions)
    logits = torch.cat([torch.full((64, 4), 30.0), torch.full((64, 4), -4.0)], dim=1)
    sample = actions.sample(logits, noise)
    assert torch.equal(actions.evaluate(logits, sample.actions).log_prob, sample.log_prob)


@pytest.mark.parametrize("actions", SPACES.values(), ids=SPACES.keys())
def test_a_row_gets_the_same_action_in_whatever_batch_it_comes(actions: ActionSpace) -> None:
    logits, noise = drawn(actions)
    together = actions.sample(logits, noise).actions
    alone = [actions.sample(logits[i : i + 1], noise[i : i + 1]).actions for i in range(64)]
    assert torch.equal(torch.cat(alone), together)


def test_flat_numbers_are_those_of_torch() -> None:
    logits, noise = drawn(SPACES["discrete"])
    sample = SPACES["discrete"].sample(logits, noise)
    evaluation = SPACES["discrete"].evaluate(logits, sample.actions)
    reference = Categorical(logits=logits)
    torch.testing.assert_close(sample.log_prob, reference.log_prob(sample.actions))
    torch.testing.assert_close(evaluation.entropy, reference.entropy())


def test_factored_choices_add_up() -> None:
    actions = SPACES["factored"]
    logits, noise = drawn(actions)
    sample = actions.sample(logits, noise)
    parts = [Categorical(logits=part) for part in logits.split([3, 2], dim=1)]
    log_prob = sum(part.log_prob(sample.actions[:, i]) for i, part in enumerate(parts))
    torch.testing.assert_close(sample.log_prob, log_prob)
    torch.testing.assert_close(actions.evaluate(logits, sample.actions).entropy, sum(part.entropy() for part in parts))


def test_continuous_numbers_are_those_of_torch() -> None:
    actions = SPACES["continuous"]
    logits, noise = drawn(actions)
    sample = actions.sample(logits, noise)
    reference = Normal(logits[:, :4], logits[:, 4:].clamp(-5, 2).exp())
    assert sample.actions.shape == (64, 2, 2)
    torch.testing.assert_close(sample.log_prob, reference.log_prob(sample.actions.flatten(1)).sum(1))
    torch.testing.assert_close(actions.evaluate(logits, sample.actions).entropy, reference.entropy().sum(1))


def test_actions_come_as_often_as_their_probabilities_say() -> None:
    probabilities = torch.tensor([0.5, 0.0, 0.3, 0.2])
    noise = (torch.arange(1000) / 1000).unsqueeze(1)
    index = choose(probabilities.log().expand(1000, -1), noise).squeeze(1)
    assert index.bincount(minlength=4).tolist() == [500, 0, 300, 200]


def test_what_is_impossible_is_never_chosen() -> None:
    impossible_ends = torch.tensor([[0.0, 1.0, 0.0]]).log()
    for noise in (0.0, 0.5, 1 - 2**-24):
        assert choose(impossible_ends, torch.tensor([[noise]])) == 1


def test_the_flat_index_of_a_type_and_parameter_goes_both_ways() -> None:
    actions = SPACES["type and parameter"]
    assert isinstance(actions, TypeAndParameter)
    assert actions.logits == 6
    pairs = actions.to_action(torch.arange(6))
    assert pairs.tolist() == [[0, 0], [1, 0], [1, 1], [1, 2], [2, 0], [2, 1]]
    assert actions.to_index(pairs).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("actions", SPACES.values(), ids=SPACES.keys())
def test_the_greedy_action_is_the_likeliest(actions: ActionSpace) -> None:
    logits, _ = drawn(actions)
    sample = actions.sample(logits, torch.full((64, actions.noise), 0.5))
    greedy = actions.greedy(sample.full_log_probs, sample.actions)
    best = actions.evaluate(logits, greedy).log_prob
    for seed in range(20):
        other = actions.sample(logits, drawn(actions, seed=seed)[1]).actions
        assert (actions.evaluate(logits, other).log_prob <= best + 1e-6).all()


def test_half_precision_logits_give_full_precision_log_probabilities() -> None:
    actions = Flat(5)
    logits, noise = drawn(actions)
    assert actions.sample(logits.bfloat16(), noise).log_prob.dtype == torch.float32
    assert actions.evaluate(logits.double(), torch.zeros(64)).log_prob.dtype == torch.float64


def test_a_space_that_no_policy_can_act_in_is_refused() -> None:
    with pytest.raises(ValueError, match="Discrete, MultiDiscrete or Box"):
        actions_of(spaces.MultiBinary(3))


def test_log_probabilities_have_a_gradient_for_every_kind() -> None:
    for actions in SPACES.values():
        logits, noise = drawn(actions)
        logits.requires_grad_()
        with torch.no_grad():
            taken = actions.sample(logits, noise).actions
        evaluation = actions.evaluate(logits, taken)
        (evaluation.log_prob.sum() + evaluation.entropy.sum()).backward()
        assert logits.grad is not None
        assert np.isfinite(logits.grad.numpy()).all()
        assert logits.grad.any(dim=0).all()
