"""Action spaces: samples, their log-probabilities and entropies."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from support.playing import vector_env
from torch import Tensor
from torch.distributions import Categorical, Normal

from engram import EnvSpec
from engram.agent.actions import ActionSpace, CategoricalActions, TypeParameterActions, make_actions


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
def test_evaluating_a_sample_gives_the_log_probability_it_was_sampled_with(actions: ActionSpace) -> None:
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
def test_a_row_gets_the_same_action_in_any_batch(actions: ActionSpace) -> None:
    logits, noise = drawn(actions)
    together = actions.sample(logits, noise).actions
    alone = [actions.sample(logits[i : i + 1], noise[i : i + 1]).actions for i in range(64)]
    assert torch.equal(torch.cat(alone), together)


def test_categorical_actions_equal_those_of_torch() -> None:
    logits, noise = drawn(SPACES["discrete"])
    sample = SPACES["discrete"].sample(logits, noise)
    evaluation = SPACES["discrete"].evaluate(logits, sample.actions)
    reference = Categorical(logits=logits)
    torch.testing.assert_close(sample.log_prob, reference.log_prob(sample.actions))
    torch.testing.assert_close(evaluation.entropy, reference.entropy())


def test_independent_categorical_variables_add_up() -> None:
    actions = SPACES["factored"]
    logits, noise = drawn(actions)
    sample = actions.sample(logits, noise)
    parts = [Categorical(logits=part) for part in logits.split([3, 2], dim=1)]
    log_prob = sum(part.log_prob(sample.actions[:, i]) for i, part in enumerate(parts))
    torch.testing.assert_close(sample.log_prob, log_prob)
    torch.testing.assert_close(actions.evaluate(logits, sample.actions).entropy, sum(part.entropy() for part in parts))


def test_gaussian_actions_equal_those_of_torch() -> None:
    actions = SPACES["continuous"]
    logits, noise = drawn(actions)
    sample = actions.sample(logits, noise)
    reference = Normal(logits[:, :4], logits[:, 4:].clamp(-5, 2).exp())
    assert sample.actions.shape == (64, 2, 2)
    torch.testing.assert_close(sample.log_prob, reference.log_prob(sample.actions.flatten(1)).sum(1))
    torch.testing.assert_close(actions.evaluate(logits, sample.actions).entropy, reference.entropy().sum(1))


def test_type_and_parameter_convert_to_a_flat_index_and_back() -> None:
    actions = SPACES["type and parameter"]
    assert isinstance(actions, TypeParameterActions)
    assert actions.logits == 6
    pairs = actions.to_action(torch.arange(6))
    assert pairs.tolist() == [[0, 0], [1, 0], [1, 1], [1, 2], [2, 0], [2, 1]]
    assert actions.to_index(pairs).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("actions", SPACES.values(), ids=SPACES.keys())
def test_the_greedy_action_is_the_most_likely(actions: ActionSpace) -> None:
    logits, _ = drawn(actions)
    sample = actions.sample(logits, torch.full((64, actions.noise), 0.5))
    greedy = actions.greedy(sample.full_log_probs, sample.actions)
    best = actions.evaluate(logits, greedy).log_prob
    for seed in range(20):
        other = actions.sample(logits, drawn(actions, seed=seed)[1]).actions
        assert (actions.evaluate(logits, other).log_prob <= best + 1e-6).all()


def test_half_precision_logits_give_full_precision_log_probabilities() -> None:
    actions = CategoricalActions(5)
    logits, noise = drawn(actions)
    assert actions.sample(logits.bfloat16(), noise).log_prob.dtype == torch.float32
    assert actions.evaluate(logits.double(), torch.zeros(64)).log_prob.dtype == torch.float64


def test_an_unsupported_action_space_is_an_error() -> None:
    with pytest.raises(ValueError, match="Discrete, MultiDiscrete or Box"):
        actions_of(spaces.MultiBinary(3))


def test_log_probabilities_have_a_gradient_in_every_space() -> None:
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
