"""Heads compute the bilinear form once per row, and start small."""

import pytest
import torch
from torch import nn

from engram.agent.heads import (
    ActionEmbedding,
    BigBilinearScores,
    BilinearActor,
    BilinearScores,
    Critic,
    GaussianActor,
    LinearActor,
    Shortcut,
)
from engram.agent.layers import INITIALISATIONS, initialise


def by_repeating(features, embeddings, weight_CIE):
    """tanh(actor · W) · embedding, with the features repeated for every action, the slow way: [N, A, C]."""
    rows, actions = len(features), len(embeddings)
    actor = features.repeat_interleave(actions, dim=0)
    embedding = embeddings.repeat(rows, 1)
    query = torch.einsum("ni,cie->nce", actor, weight_CIE).tanh()
    return torch.einsum("nce,ne->nc", query, embedding).view(rows, actions, -1)


def test_the_bilinear_actor_equals_the_repetition_per_action():
    torch.manual_seed(0)
    scores, features, embeddings = BilinearScores(512, 16), torch.randn(7, 512), ActionEmbedding(30)()
    nn.init.constant_(scores.bias, 0.3)
    expected = by_repeating(features, embeddings, scores.query.weight.T.unsqueeze(0)).squeeze(-1) + 0.3
    torch.testing.assert_close(scores(features, embeddings), expected)


def test_actors_have_relu_in_their_hidden_layer_and_the_critic_tanh():
    torch.manual_seed(0)
    features, actor, continuous, critic = torch.randn(7, 32), BilinearActor(32, 5), GaussianActor(32, 2), Critic(32)
    linear = LinearActor(32, 5)
    torch.testing.assert_close(linear(features), linear.output(linear.hidden(features).relu()))
    hidden = actor.hidden(features).relu()
    torch.testing.assert_close(actor(features), actor.scores(hidden, actor.embedding()))
    torch.testing.assert_close(continuous(features), continuous.output(continuous.hidden(features).relu()))
    torch.testing.assert_close(critic(features), critic.value(critic.hidden(features).tanh()))


def test_the_big_actor_equals_the_repetition_per_action():
    torch.manual_seed(0)
    big, features, embeddings = (
        BigBilinearScores(64, 16, channels=8, hidden_size=32),
        torch.randn(7, 64),
        torch.randn(5, 16),
    )
    nn.init.normal_(big.bias)
    channels = by_repeating(features, embeddings, big.query.weight.view(8, 16, 64).transpose(1, 2)) + big.bias
    torch.testing.assert_close(big(features, embeddings), big.score(big.hidden(channels).relu()).squeeze(-1))


def test_features_are_never_repeated_per_action():
    shapes = []
    scores = BilinearScores(64, 16)
    scores.query.register_forward_hook(lambda _, inputs, output: shapes.append((inputs[0].shape, output.shape)))
    scores(torch.randn(7, 64), torch.randn(1000, 16))
    assert shapes == [((7, 64), (7, 16))]


@pytest.mark.parametrize("actions", [2, 5, 100])
def test_the_largest_value_of_the_action_embeddings_is_a_tenth(actions):
    assert ActionEmbedding(actions)().abs().max().item() == pytest.approx(0.1)


def test_heads_have_the_sizes_documented():
    critic, actor = Critic(128), BilinearActor(128, num_actions=30)
    assert critic(torch.randn(4, 128)).shape == (4, 1)
    assert actor(torch.randn(4, 128)).shape == (4, 30)
    shapes = [tuple(parameter.shape) for parameter in (*critic.parameters(), *actor.parameters())]
    assert shapes == [(1024, 128), (1024,), (1, 1024), (1,), (512, 128), (512,), (30, 16), (1,), (16, 512)]


@pytest.mark.parametrize("actor", [BilinearActor, LinearActor])
def test_a_fresh_policy_is_nearly_uniform(actor):
    torch.manual_seed(0)
    probabilities = actor(128, num_actions=10)(torch.randn(100, 128)).softmax(-1)
    assert 0.05 < probabilities.min() < probabilities.max() < 0.2


def test_continuous_actions_begin_with_small_means_and_deviations_near_one():
    torch.manual_seed(0)
    mean, log_std = GaussianActor(128, dimensions=3)(torch.randn(50, 128)).chunk(2, dim=-1)
    assert mean.shape == (50, 3)
    assert mean.abs().max() < 0.5
    assert log_std.abs().max() < 0.5


@pytest.mark.parametrize(
    "head", [Critic(32), BilinearActor(32, 5), LinearActor(32, 5), GaussianActor(32, 2)], ids=lambda h: type(h).__name__
)
def test_double_precision_and_autocast_work(head):
    features = torch.randn(4, 32)
    single = head(features)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(head(features).float(), single, atol=0.1, rtol=0.1)
    torch.testing.assert_close(head.double()(features.double()).float(), single, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_heads_compile_whole_and_give_the_same_numbers():
    actor, features = BilinearActor(32, 5), torch.randn(4, 32)
    torch.testing.assert_close(torch.compile(actor, fullgraph=True, backend="aot_eager")(features), actor(features))


def test_orthogonal_weights_have_the_gain_of_the_nonlinearity():
    weight = initialise(nn.Linear(64, 32), "relu").weight
    torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(32), atol=1e-5, rtol=0)
    weight = initialise(nn.Linear(64, 32)).weight
    torch.testing.assert_close(weight @ weight.T, torch.eye(32), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", sorted(INITIALISATIONS))
@pytest.mark.parametrize("layer", [nn.Linear(8, 4), nn.Conv2d(3, 4, 3), nn.Linear(8, 4, bias=False)], ids=str)
def test_every_initialisation_fills_every_layer_and_clears_its_bias(name, layer):
    weight = layer.weight.clone()
    initialise(layer, "tanh", name)
    assert not torch.equal(layer.weight, weight)
    assert layer.bias is None or not layer.bias.any()


def test_max_0_01_scales_to_that_value():
    assert initialise(nn.Linear(8, 4), "relu", "max_0_01").weight.abs().max().item() == pytest.approx(0.01)


@pytest.mark.parametrize("inputs", [4, 256, 4096])
def test_an_update_moves_logits_of_a_shortcut_about_alike_however_many_inputs_it_has(inputs: int) -> None:
    shortcut = Shortcut(inputs, 3)
    optimizer = torch.optim.Adam(shortcut.parameters(), lr=0.001)
    read = torch.randn(1, inputs, generator=torch.Generator().manual_seed(0))
    assert not shortcut(read).any()
    shortcut(read)[0, 0].backward()
    optimizer.step()
    assert 0 < -shortcut(read)[0, 0].item() < 0.001 * 256  # against the gradient
