"""Acting and learning compile whole, with no graph break, and give the same numbers."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from support.playing import Segment, play, replay, replay_difference, token_spec
from support.properties import ROWS, act, answers
from torch import Tensor, nn

from engram import MettaAgent
from engram.agent.policies.base import Policy
from engram.agent.policy_factory import make_policy
from engram.agent.recurrent import CORES
from engram.agent.settings import POLICIES, PyAgent

# One policy with every core, and one core with every encoder: an encoder does not know its core. Machine code takes
# long to make, so it is made for one pair. Cores are traced with their gradient; encoders, which have no operators of
# their own, without it. latent_attn_med has the modules of latent_attn_small.
CASES = [
    ("fast", "lstm", "inductor"),
    *(("fast", core, "aot_eager") for core in CORES if core != "lstm"),
    *((name, "lstm", "eager") for name in POLICIES if name not in ("fast", "latent_attn_med")),
]


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def made(name: str = "fast", core: str = "lstm") -> Policy:
    torch.manual_seed(0)
    policy = make_policy(token_spec(), PyAgent(name=name, core=core, hidden_size=16))
    policy.reserve_memory(ROWS)
    return policy


def compiled(policy: nn.Module, backend: str) -> nn.Module:
    return torch.compile(policy, fullgraph=True, backend=backend)


@torch.no_grad()
def acted(policy: Policy, run: nn.Module) -> list[Tensor]:
    """Outputs of three steps with episode starts, and the memory after them."""
    policy.reset_memory()
    seen = []
    for step in range(3):
        starts = torch.arange(ROWS) % 3 == step
        seen += [act(policy, step, run=run, dones=starts).select("actions", "full_log_probs", "values")]
    return [*(answers(td) for td in seen), *(store.memory_NLS.clone() for store in policy.stores().values())]


def learned(policy: Policy, run: nn.Module, segment: Segment) -> list[Tensor]:
    """Log-probabilities, values, entropies, and the gradients of a loss of them."""
    td = replay(run, segment)
    policy.zero_grad()
    (td["act_log_prob"].sum() + td["value"].square().sum() + td["entropy"].sum()).backward()
    gradients = [p.grad.clone() for p in policy.parameters() if p.grad is not None]
    return [td["act_log_prob"].detach(), td["value"].detach(), td["entropy"].detach(), *gradients]


def assert_same(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "core", "backend"), CASES)
def test_acting_and_learning_compile_and_give_the_same_numbers(name: str, core: str, backend: str) -> None:
    policy = made(name, core)
    run = compiled(policy, backend)
    segment = play(policy, ROWS, 3, 0.3, rollouts=2)[1]
    assert_same(acted(policy, run), acted(policy, policy))
    assert_same(learned(policy, run, segment), learned(policy, policy, segment))


def test_acting_is_one_graph() -> None:
    policy = made()
    assert_same(acted(policy, compiled(policy, "eager")), acted(policy, policy))


@pytest.mark.slow
def test_slices_of_other_sizes_compile_and_replay() -> None:
    policy = made()
    policy.reserve_memory(9)
    run = compiled(policy, "eager")
    segments = play(run, 9, 6, 0.2, rollouts=2, spec=policy.env_spec)
    assert replay_difference(policy, segments) < 1e-5
    assert replay_difference(run, segments) < 1e-5


def test_an_agent_that_maps_features_is_one_graph() -> None:
    home = token_spec()
    agent = MettaAgent(home, PyAgent(hidden_size=16))
    agent.bind(replace(home, features=tuple(replace(f, id=5 - f.id) for f in home.features)))
    agent.reserve_memory(ROWS)
    run = compiled(agent, "eager")
    assert agent.feature_map is not None
    assert_same(acted(agent.policy, run), acted(agent.policy, agent))
