"""Optimisers: which parameters they update, that they learn, and that their state can be saved and loaded."""

from functools import partial

import pytest
import torch
from support.running import metrics, run
from torch import nn

from engram.agent.metta_agent import MettaAgent
from engram.agent.settings import PyAgent
from engram.env.registry import make_spec
from engram.env.settings import TMaze
from engram.training.optimizer import (
    Muon,
    OptimizerStep,
    hidden_matrices,
    make_optimizer,
    orthogonalize,
    set_options,
)
from engram.training.settings import Optimizer

TYPES = ("adam", "adamw", "muon")


@pytest.fixture
def agent() -> MettaAgent:
    torch.manual_seed(0)
    return MettaAgent(make_spec(TMaze()), PyAgent(name="fast", hidden_size=16))


def step(agent: MettaAgent, optimizer: torch.optim.Optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in agent.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()


def test_muon_updates_only_matrices_between_features(agent) -> None:
    chosen = {id(matrix) for matrix in hidden_matrices(agent)}
    names = {name.removeprefix("policy.") for name, parameter in agent.named_parameters() if id(parameter) in chosen}
    recurrent = {f"core.weight_{kind}_l{layer}" for kind in ("ih", "hh") for layer in (0, 1)}
    linear = {"encoder.linear1", "encoder.linear2", "actor.hidden", "actor.scores.query", "critic.hidden"}
    assert names == recurrent | {f"{name}.weight" for name in linear}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("fused", [False, True])
def test_every_parameter_has_exactly_one_optimiser(agent, kind: str, fused: bool) -> None:
    optimizer = make_optimizer(agent, Optimizer(type=kind, fused=fused))
    optimized = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    assert sorted(optimized) == sorted(id(parameter) for parameter in agent.parameters())
    before = [parameter.detach().clone() for parameter in agent.parameters()]
    step(agent, optimizer, 0)
    assert all(not torch.equal(old, new) for old, new in zip(before, agent.parameters(), strict=True))


@pytest.mark.parametrize("kind", TYPES)
def test_a_loaded_optimiser_continues_exactly(agent, kind: str) -> None:
    settings = Optimizer(type=kind)
    optimizer = make_optimizer(agent, settings)
    step(agent, optimizer, 0)
    saved, weights = optimizer.state_dict(), {k: v.clone() for k, v in agent.state_dict().items()}
    saved = {**saved, "state": {i: {k: v.clone() for k, v in s.items()} for i, s in saved["state"].items()}}
    step(agent, optimizer, 1)
    expected = [parameter.detach().clone() for parameter in agent.parameters()]

    agent.load_state_dict(weights)
    other = make_optimizer(agent, settings)
    other.load_state_dict(saved)
    step(agent, other, 1)
    assert all(torch.equal(old, new) for old, new in zip(expected, agent.parameters(), strict=True))


@pytest.mark.parametrize("shape", [(16, 8), (8, 16), (8, 8)])
def test_muon_in_float32_equals_torchs_up_to_rounding(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    start, gradients = torch.randn(shape), torch.randn(4, *shape)
    ends = []
    for kind in (Muon, partial(torch.optim.Muon, adjust_lr_fn="match_rms_adamw")):
        parameter = nn.Parameter(start.clone())
        optimizer = kind([parameter], lr=0.1, weight_decay=0.1, momentum=0.9)
        for gradient in gradients:
            parameter.grad = gradient.clone()
            optimizer.step()
        ends.append(parameter.detach() - start)
    assert (ends[0] - ends[1]).norm() < 0.02 * ends[1].norm()


def test_the_update_of_muon_has_singular_values_near_one() -> None:
    torch.manual_seed(0)
    update = orthogonalize(torch.randn(32, 8))
    assert update.shape == (32, 8)
    assert all(0.6 < value < 1.3 for value in torch.linalg.svdvals(update).tolist())


@pytest.mark.parametrize("kind", TYPES)
def test_gradient_norms_are_measured_before_clipping(agent, kind: str) -> None:
    optimise = OptimizerStep(agent, make_optimizer(agent, Optimizer(type=kind)))
    for _ in range(2):
        for parameter in agent.parameters():
            parameter.grad = torch.randn_like(parameter)
        gradients = {id(p): p.grad.flatten().clone() for p in agent.parameters() if p.grad is not None}
        recurrent = [gradients[id(p)] for p in agent.recurrent_parameters()]
        norms = optimise(Optimizer(type=kind, max_grad_norm=0.1))
        torch.testing.assert_close(norms.norm, torch.cat(list(gradients.values())).norm())
        torch.testing.assert_close(norms.norm_recurrent, torch.cat(recurrent).norm())


@pytest.mark.parametrize("kind", TYPES)
def test_a_learning_rate_of_zero_changes_no_weight(agent, kind: str) -> None:
    optimizer = make_optimizer(agent, Optimizer(type=kind))
    before = [parameter.detach().clone() for parameter in agent.parameters()]
    set_options(optimizer, Optimizer(type=kind).model_copy(update={"learning_rate": 0.0}))
    step(agent, optimizer, 0)
    assert all(torch.equal(old, new) for old, new in zip(before, agent.parameters(), strict=True))


def test_fused_and_separate_kernels_agree_up_to_rounding(agent) -> None:
    start = {k: v.clone() for k, v in agent.state_dict().items()}
    ends = []
    for fused in (False, True):
        agent.load_state_dict(start)
        optimizer = make_optimizer(agent, Optimizer(fused=fused))
        step(agent, optimizer, 0)
        ends.append([parameter.detach().clone() for parameter in agent.parameters()])
    assert all(torch.allclose(one, other, atol=1e-7) for one, other in zip(*ends, strict=True))


@pytest.mark.parametrize("kind", TYPES)
def test_a_run_learns_with_every_optimiser(tmp_path, kind: str) -> None:
    run(
        tmp_path,
        f"trainer.optimizer.type={kind}",
        "trainer.optimizer.fused=true",
        "trainer.optimizer.learning_rate=0.003",
        "trainer.checkpoint.interval=100",
        epochs=40,
    )
    records = metrics(tmp_path)
    assert records[-1]["return"] > 1.5 * records[0]["return"]
    assert records[-1]["loss/entropy"] < records[0]["loss/entropy"]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("size", [1e-4, 1.0])  # below and above the maximum norm
def test_gradients_are_clipped_as_clip_grad_norm_does(agent, kind: str, fused: bool, size: float) -> None:
    settings = Optimizer(type=kind, fused=fused, max_grad_norm=0.5)
    start = {k: v.clone() for k, v in agent.state_dict().items()}
    ends = []
    for ours in (True, False):
        agent.load_state_dict(start)
        optimizer = make_optimizer(agent, settings)
        optimise = OptimizerStep(agent, optimizer)
        for number in range(3):
            generator = torch.Generator().manual_seed(number)
            for parameter in agent.parameters():
                parameter.grad = size * torch.randn(parameter.shape, generator=generator)
            if ours:
                optimise(settings)
            else:
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        ends.append([parameter.detach().clone() for parameter in agent.parameters()])
    assert all(torch.allclose(one, other, rtol=1e-4, atol=1e-6) for one, other in zip(*ends, strict=True))


@pytest.mark.parametrize("fused", [False, True])
def test_parameters_without_a_gradient_do_not_change(agent, fused: bool) -> None:
    optimise = OptimizerStep(agent, make_optimizer(agent, Optimizer(fused=fused)))
    first, *others = agent.parameters()
    for parameter in others:
        parameter.grad = torch.ones_like(parameter)
    before = first.detach().clone()
    assert optimise(Optimizer(fused=fused)).norm > 0
    assert torch.equal(first, before)


@pytest.mark.parametrize("fused", [False, True])
def test_a_nan_gradient_is_not_hidden(agent, fused: bool) -> None:
    optimise = OptimizerStep(agent, make_optimizer(agent, Optimizer(fused=fused)))
    for parameter in agent.parameters():
        parameter.grad = torch.ones_like(parameter)
    next(agent.parameters()).grad.view(-1)[0] = torch.nan
    assert optimise(Optimizer(fused=fused)).norm.isnan()
    assert all(parameter.isnan().any() for parameter in agent.parameters())
