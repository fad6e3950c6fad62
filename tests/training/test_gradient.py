"""The gradient of a minibatch: in parts, after a burn-in, in another precision, and with a pull to the start."""

import numpy as np
import pytest
import torch
from support.running import metrics, run
from tensordict import TensorDict
from torch import nn

from engram.agent.metta_agent import MettaAgent
from engram.agent.settings import PyAgent
from engram.env.registry import make_spec
from engram.env.settings import Recall
from engram.training.experience import Minibatch
from engram.training.gradient import compute_gradient
from engram.training.settings import PPO, Trainer
from engram.training.trace import Trace

B, T, BURN_IN = 7, 6, 4
CORES = ("lstm", "gru", "mingru", "lru", "attention")


def make_agent(core: str = "lstm") -> MettaAgent:
    torch.manual_seed(0)
    return MettaAgent(make_spec(Recall()), PyAgent(core=core, hidden_size=16))


def make_minibatch(agent: MettaAgent) -> Minibatch:
    """Random in all its parts, with episode starts inside, absent agents, and weights."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    space = agent.env_spec.single_observation_space
    space.seed(0)
    observations = torch.from_numpy(np.stack([space.sample() for _ in range(B * T)])).view(B, T, *space.shape)
    data = TensorDict(
        {
            "env_obs": observations,
            "actions": torch.randint(agent.action_space.logits, (B, T), generator=generator),
            "dones": torch.rand(B, T, generator=generator) < 0.1,
            "truncateds": torch.rand(B, T, generator=generator) < 0.1,
            "act_log_prob": normal(B, T) - 1,
            "values": normal(B, T),
            "returns": normal(B, T),
        },
        [B, T],
    )
    data["starts"] = data["dones"] | data["truncateds"]
    memory = TensorDict({name: normal(B, *shape) for name, shape in agent.memory_shapes().items()}, [B])
    weights = torch.rand(B, T, generator=generator) * (torch.rand(B, T, generator=generator) < 0.8)
    return Minibatch(torch.arange(B), data, memory, normal(B, T), weights)


def gradients(agent: MettaAgent, minibatch: Minibatch, tmp_path, **settings) -> dict[str, torch.Tensor]:
    compute_gradient(agent, minibatch, Trainer(**settings), Trace(tmp_path / "trace.jsonl", 0))
    return {name: p.grad.clone() for name, p in agent.named_parameters() if p.grad is not None}


def assert_close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], bound: float = 1e-6) -> None:
    assert one.keys() == other.keys()
    for name, gradient in one.items():
        torch.testing.assert_close(
            gradient, other[name], atol=bound, rtol=0, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("parts", [2, 3, 7, 100])
@pytest.mark.parametrize("l2_init_coef", [0.0, 0.1])
def test_in_parts_the_gradient_and_the_losses_are_those_of_the_whole(tmp_path, parts: int, l2_init_coef: float) -> None:
    agent, ppo = make_agent(), PPO(l2_init_coef=l2_init_coef)
    minibatch = make_minibatch(agent)
    if l2_init_coef:
        agent.update_l2_init_weight_copy()
        with torch.no_grad():
            for parameter in agent.parameters():
                parameter += 0.01
    trace = Trace(tmp_path / "trace.jsonl", 0)
    whole = compute_gradient(agent, minibatch, Trainer(ppo=ppo), trace)
    expected = {name: p.grad.clone() for name, p in agent.named_parameters() if p.grad is not None}
    inparts = compute_gradient(agent, minibatch, Trainer(ppo=ppo, accumulate=parts), trace)
    assert_close({name: p.grad for name, p in agent.named_parameters() if p.grad is not None}, expected)
    for name, loss in whole.losses._asdict().items():
        if loss is not None:
            torch.testing.assert_close(getattr(inparts.losses, name), loss, atol=1e-5, rtol=1e-5)
    assert torch.allclose(inparts.replayed["act_log_prob"], whole.replayed["act_log_prob"], atol=1e-6)


def test_runs_with_and_without_accumulation_learn_the_same(tmp_path) -> None:
    run(tmp_path, name="whole", epochs=2)
    run(tmp_path, "trainer.accumulate=3", name="parts", epochs=2)
    for one, other in zip(metrics(tmp_path, "whole"), metrics(tmp_path, "parts"), strict=True):
        assert one == pytest.approx(other, abs=1e-4)


@pytest.mark.parametrize("core", CORES)
def test_burn_in_gives_the_gradient_of_the_rest_from_the_memory_it_leaves(tmp_path, core: str) -> None:
    agent = make_agent(core)
    minibatch = make_minibatch(agent)
    first = minibatch.data[:, :BURN_IN]
    with torch.no_grad():  # the memory after the first steps, by acting them out
        agent.policy.stores()["lstm"].write(torch.arange(B), minibatch.memory["lstm"])
        for t in range(BURN_IN):
            agent(first[:, t].select("env_obs", "dones", "truncateds"))
        after = TensorDict(agent.memory_of(torch.arange(B)), [B])
    rest = Minibatch(
        minibatch.segments,
        minibatch.data[:, BURN_IN:],
        after,
        minibatch.advantages[:, BURN_IN:],
        minibatch.weights[:, BURN_IN:],
    )
    expected = gradients(agent, rest, tmp_path)

    weights = minibatch.weights.clone()
    weights[:, :BURN_IN] = 0
    agent.set_burn_in(BURN_IN)
    burnt_in = gradients(agent, minibatch._replace(weights=weights), tmp_path)
    assert_close(burnt_in, expected, 1e-6)
    agent.set_burn_in(0)
    without = gradients(agent, minibatch._replace(weights=weights), tmp_path)
    assert any(not torch.allclose(without[name], gradient, atol=1e-6) for name, gradient in expected.items())


def test_a_run_with_burn_in_replays_exactly_and_learns_only_from_the_rest(tmp_path) -> None:
    run(tmp_path, "trainer.burn_in=3", epochs=3)
    run(tmp_path, name="without", epochs=3)
    assert all(record["memory/replay_error"] < 1e-5 for record in metrics(tmp_path))
    assert metrics(tmp_path)[0]["loss/policy"] != metrics(tmp_path, "without")[0]["loss/policy"]


@pytest.mark.parametrize("core", CORES)
def test_in_bfloat16_gradients_are_near_and_weights_stay_float32(tmp_path, core: str) -> None:
    agent = make_agent(core)
    minibatch = make_minibatch(agent)
    exact = gradients(agent, minibatch, tmp_path)
    rough = gradients(agent, minibatch, tmp_path, precision="bfloat16")
    assert all(gradient.dtype == torch.float32 for gradient in rough.values())
    size = torch.stack([gradient.norm() for gradient in exact.values()]).norm()
    distance = torch.stack([(gradient - rough[name]).norm() for name, gradient in exact.items()]).norm()
    assert 0 < distance < 0.1 * size


@pytest.mark.parametrize("policy", ["fast", "latent_attn_small", "example"])
def test_a_run_in_bfloat16_replays_what_it_played(tmp_path, policy: str) -> None:
    words = ("env=tmaze", f"py_agent={policy}")
    run(tmp_path, *words, "trainer.precision=bfloat16", epochs=2)
    run(tmp_path, *words, name="float32", epochs=2)
    records, exact = metrics(tmp_path), metrics(tmp_path, "float32")
    assert all(record["memory/replay_error"] < 0.05 for record in records)
    assert records[0]["loss/value"] == pytest.approx(exact[0]["loss/value"], rel=0.3)
    assert records[0]["loss/value"] != exact[0]["loss/value"]


def test_acting_and_learning_are_in_the_same_precision(tmp_path, monkeypatch) -> None:
    seen, right = set(), nn.Linear.forward

    def forward(self, features):
        outputs = right(self, features)
        seen.add((torch.is_grad_enabled(), outputs.dtype))
        return outputs

    monkeypatch.setattr(nn.Linear, "forward", forward)
    run(tmp_path, "trainer.precision=bfloat16", epochs=1)
    assert seen == {(False, torch.bfloat16), (True, torch.bfloat16)}


def test_l2_init_pulls_weights_to_their_initial_values_also_after_a_resume(tmp_path) -> None:
    run(tmp_path, epochs=4, name="free")
    run(tmp_path, "trainer.ppo.l2_init_coef=1", epochs=4, name="held")
    for epochs in (2, 4):
        run(tmp_path, "trainer.ppo.l2_init_coef=1", epochs=epochs, name="pieces")
    run(tmp_path, "trainer.ppo.l2_init_coef=1e-9", epochs=4, name="barely")
    held, barely = (metrics(tmp_path, name)[-1]["loss/l2_init"] for name in ("held", "barely"))
    assert 0 < held < barely / 2
    assert "loss/l2_init" not in metrics(tmp_path, "free")[-1]
    assert metrics(tmp_path, "pieces") == metrics(tmp_path, "held")
