"""PolicyStep, and tracing policies by hand."""

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from engram.export import PolicyStep
from engram.settings import UserError

RECALL = ("env=recall", "py_agent.hidden_size=64")


class ByHand(nn.Module):
    """What one might write to trace a policy."""

    def __init__(self, agent, with_memory: bool) -> None:
        super().__init__()
        self.agent, self.with_memory = agent, with_memory

    def forward(self, observations, memory, starts):
        fields = {"env_obs": observations, "starts": starts}
        td = TensorDict(fields, batch_size=[observations.shape[0]])
        if self.with_memory:
            td["memory"] = TensorDict({"lstm": memory}, batch_size=td.batch_size)
        return self.agent(td)["full_log_probs"]


def inputs(agent, rows: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    shape = agent.memory_shapes()["lstm"]
    memory = torch.randn(rows, *shape, generator=generator)
    size = agent.env_spec.single_observation_space.shape
    return torch.randn(rows, *size, generator=generator), memory, torch.zeros(rows, dtype=torch.bool)


def test_a_step_is_what_the_agent_does_with_its_own_memory(make):
    agent, _ = make(*RECALL)
    step, generator = PolicyStep(agent), torch.Generator().manual_seed(2)
    memory = step.example(4)[1]
    for _ in range(12):
        observations = torch.randn(4, 6, generator=generator)
        starts = torch.rand(4, generator=generator) < 0.2
        with torch.no_grad():
            td = agent(TensorDict({"env_obs": observations, "starts": starts}, batch_size=[4]))
            action, log_probs, value, memory = step({"observations": observations}, memory, starts)
        torch.testing.assert_close(log_probs, td["full_log_probs"])
        torch.testing.assert_close(value, td["values"])
        assert torch.equal(action, td["full_log_probs"].argmax(-1))
    torch.testing.assert_close(memory.view(4, 1, -1), agent.memory_of(torch.arange(4))["lstm"])


def test_a_step_leaves_the_agent_alone(make):
    agent, _ = make(*RECALL)
    step = PolicyStep(agent)
    with torch.no_grad():
        step(*step.example(3))
    assert agent.get_memory() == ({}, {})
    assert step.agent.get_memory() == ({}, {})
    assert all(parameter.requires_grad for parameter in agent.parameters())


def test_a_policy_without_memory_starts_over_at_every_step(make):
    agent, _ = make(*RECALL)
    step = PolicyStep(agent, use_memory=False)
    observations, memory, starts = step.example(2)
    with torch.no_grad():
        empty = step(observations, memory, ~starts)
        full = step(observations, memory + 1, ~starts)
    assert torch.equal(empty[1], full[1])


@pytest.mark.filterwarnings("ignore")  # of torch.jit.trace: it fixes shapes
@pytest.mark.parametrize("trace", [torch.jit.trace, torch.export.export])
def test_tracing_a_policy_with_its_memory_inside_is_an_error(make, trace):
    agent, _ = make(*RECALL)
    with torch.no_grad(), pytest.raises(UserError, match="must take its memory as an input"):
        trace(ByHand(agent, with_memory=False), inputs(agent, 3))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("words", [RECALL, ("env=recall", "py_agent.core=gru")], ids=["lstm", "gru"])
def test_a_graph_traced_by_hand_computes_what_the_policy_does(make, words):
    agent, _ = make(*words)
    policy, example, others = ByHand(agent, with_memory=True), inputs(agent, 3), inputs(agent, 3, seed=1)
    with torch.no_grad():
        expected = policy(*others)
        assert (policy(*example) - expected).abs().max() > 1e-3
        for graph in (
            torch.export.export(policy, example).module(),
            torch.jit.trace(policy, example, check_trace=False),
        ):
            torch.testing.assert_close(graph(*others), expected)


def test_a_traced_graph_holds_pytorch_operators_only(make):
    agent, _ = make("env=tmaze")
    step = PolicyStep(agent)
    with torch.no_grad():
        graph = torch.export.export(step, step.example(2)).graph
    calls = {str(node.target) for node in graph.nodes if node.op == "call_function"}
    assert {name for name in calls if "engram" in name} == set()
    assert any("scatter" in name for name in calls)
