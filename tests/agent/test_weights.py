"""Weight clipping, L2-init loss and weight metrics cover every layer, recurrent ones too."""

import math
import re

import pytest
import torch
from support.playing import token_spec
from torch import nn

from engram.agent.heads import BilinearScores
from engram.agent.policy_factory import find_class
from engram.agent.weights import L2Init, WeightOptions, clip_weights, weight_layers, weight_metrics


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.core = nn.LSTM(8, 16, 2)
        self.heads = nn.ModuleDict({"actor": nn.Sequential(nn.Linear(16, 8), nn.ReLU()), "critic": nn.Linear(16, 1)})
        self.norm = nn.LayerNorm(16)
        self.l2_init = L2Init()


def largest(module):
    return max(parameter.abs().max().item() for parameter in module.parameters())


def moved(policy, by=0.1):
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(by)
    return policy


def test_linear_convolution_and_recurrent_layers_are_found():
    names = [layer.name for layer in weight_layers(Policy())]
    assert names == ["conv", "core", "heads.actor.0", "heads.critic"]
    core = weight_layers(Policy())[1]
    assert list(core.parameters)[:2] == ["core.weight_ih_l0", "core.weight_hh_l0"]
    assert len(core.parameters) == 8


def test_a_bias_beside_a_linear_layer_is_clipped_too():
    scores = BilinearScores(4, 2)
    assert "bias" in {name for layer in weight_layers(scores) for name in layer.parameters}
    clip_weights(weight_layers(moved(scores, by=5)), 0.25)
    assert largest(scores) == 0.25


def test_every_weight_that_multiplies_activations_is_clipped_in_every_policy():
    left_out = re.compile(r"norm|embedding|queries|class_token|think\.0")  # think.0 is a normalisation
    for name in ("fast", "latent_attn_small", "example"):
        policy = find_class(name)(token_spec())
        clipped = {parameter for layer in policy.weight_layers() for parameter in layer.parameters}
        rest = {parameter for parameter, _ in policy.named_parameters()} - clipped
        assert {parameter for parameter in rest if not left_out.search(parameter)} == set()


def test_a_single_layer_is_a_module_too():
    assert list(weight_layers(nn.Linear(2, 2))[0].parameters) == ["weight", "bias"]


def test_the_innermost_options_win():
    options = {"heads": WeightOptions(clip_scale=2), "heads.critic": WeightOptions(clip_scale=3)}
    scales = {layer.name: layer.options.clip_scale for layer in weight_layers(Policy(), options)}
    assert scales == {"conv": 1, "core": 1, "heads.actor.0": 2, "heads.critic": 3}


def test_clipping_bounds_every_layer_and_nothing_else():
    policy = moved(Policy(), by=5)
    clip_weights(weight_layers(policy, {"core": WeightOptions(clip_scale=2)}), 0.25)
    assert largest(policy.conv) == largest(policy.heads) == 0.25
    assert largest(policy.core) == 0.5
    assert largest(policy.norm) == 6


def test_clipping_bounds_negative_weights_and_keeps_those_in_range():
    layer = nn.Linear(2, 1, bias=False)
    layer.weight.data = torch.tensor([[-3.0, 0.1]])
    clip_weights(weight_layers(layer), 1.0)
    torch.testing.assert_close(layer.weight.data, torch.tensor([[-1.0, 0.1]]))


def test_a_range_of_zero_clips_nothing():
    policy = moved(Policy(), by=5)
    clip_weights(weight_layers(policy), 0)
    assert largest(policy) > 4


def test_the_l2_loss_is_zero_at_first_and_has_a_gradient_after_a_step():
    policy = Policy()
    assert policy.l2_init.loss(weight_layers(policy)) == 0
    moved(policy)
    loss = policy.l2_init.loss(weight_layers(policy))
    loss.backward()
    count = sum(p.numel() for layer in weight_layers(policy) for p in layer.parameters.values())
    assert loss.item() == pytest.approx(0.01 * count, rel=1e-4)
    torch.testing.assert_close(policy.core.weight_hh_l1.grad, torch.full((64, 16), 0.2))


def test_the_l2_loss_pulls_weights_back():
    policy = Policy()
    before = policy.core.weight_hh_l0.detach().clone()
    policy.l2_init.update_copy(weight_layers(policy))
    moved(policy)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.5)
    policy.l2_init.loss(weight_layers(policy)).backward()
    optimizer.step()
    torch.testing.assert_close(policy.core.weight_hh_l0.detach(), before)


def test_layers_have_their_own_l2_scale():
    policy = Policy()
    options = {"": WeightOptions(l2_init_scale=0), "heads.critic": WeightOptions(l2_init_scale=3)}
    policy.l2_init.loss(weight_layers(policy, options))
    moved(policy)
    assert policy.l2_init.loss(weight_layers(policy, options)).item() == pytest.approx(3 * 0.01 * 17, rel=1e-4)


def test_updating_the_copy_resets_the_distance():
    policy = Policy()
    policy.l2_init.loss(weight_layers(policy))
    moved(policy)
    policy.l2_init.update_copy(weight_layers(policy))
    assert policy.l2_init.loss(weight_layers(policy)) == 0


def test_the_copies_survive_a_checkpoint():
    policy = Policy()
    policy.l2_init.update_copy(weight_layers(policy))
    moved(policy)
    loss = policy.l2_init.loss(weight_layers(policy))
    restored = Policy()
    restored.l2_init.update_copy(weight_layers(restored))
    for fresh in (restored, Policy()):
        fresh.load_state_dict(policy.state_dict())
        torch.testing.assert_close(fresh.l2_init.loss(weight_layers(fresh)), loss)


def test_a_checkpoint_without_copies_removes_them():
    policy = Policy()
    policy.l2_init.update_copy(weight_layers(policy))
    policy.load_state_dict(Policy().state_dict())
    assert not policy.l2_init.state_dict()
    assert policy.l2_init.loss(weight_layers(policy)) == 0


def test_a_policy_without_l2_saves_no_copies():
    assert not any("l2_init" in key for key in Policy().state_dict())


def test_metrics_of_a_known_matrix():
    layer = nn.Linear(4, 4)
    layer.weight.data = torch.diag(torch.tensor([3.0, 3.0, 0.0, 3.0]))
    metrics = weight_metrics(weight_layers(layer))
    assert metrics == pytest.approx(
        {
            "weight/norm": math.sqrt(27),
            "weight/largest_singular": 3,
            "weight/smallest_singular": 0,
            "weight/collapsed": 1,
            "weight/effective_rank": 3,
            "weight/rank_99": 3,
        },
        abs=1e-5,
    )


def test_metrics_see_recurrent_and_convolution_weights():
    metrics = weight_metrics(weight_layers(Policy()))
    assert "core.weight_hh_l1/effective_rank" in metrics
    assert metrics["conv.weight/norm"] > 0
    assert not any("bias" in name for name in metrics)


def test_metrics_can_be_switched_off_by_layer():
    options = {
        "core": WeightOptions(analyze_weights=False, effective_rank=False),
        "conv": WeightOptions(effective_rank=False),
    }
    metrics = weight_metrics(weight_layers(Policy(), options))
    assert not any(name.startswith("core") for name in metrics)
    assert [name for name in metrics if name.startswith("conv")] == [
        f"conv.weight/{metric}" for metric in ("norm", "largest_singular", "smallest_singular", "collapsed")
    ]


def test_weights_that_are_not_finite_have_nan_metrics():
    layer = nn.Linear(3, 3)
    layer.weight.data[0, 0] = math.nan
    assert all(math.isnan(value) for value in weight_metrics(weight_layers(layer)).values())


def test_zero_weights_are_all_collapsed():
    layer = nn.Linear(3, 3)
    layer.weight.data.zero_()
    metrics = weight_metrics(weight_layers(layer))
    assert metrics["weight/norm"] == 0
    assert metrics["weight/collapsed"] == 3
