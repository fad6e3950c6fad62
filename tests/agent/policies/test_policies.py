"""The five policies, with every core: what they were played with is what they are trained on."""

import numpy as np
import pytest
import torch
from support.playing import image_env, token_spec, vector_env
from support.properties import (
    check_boundaries,
    check_clipping,
    check_log_probs,
    check_no_graph,
    check_replay,
    check_rows_are_apart,
    check_values_are_fractions,
)

from engram import EnvSpec
from engram.agent.policies.base import Policy
from engram.agent.policy_factory import make_policy
from engram.agent.recurrent import CORES
from engram.agent.settings import POLICIES, PyAgent

OTHERS = [(name, core) for name in POLICIES for core in CORES if (name, core) != ("fast", "lstm")]


def made(name: str = "fast", core: str = "lstm", window: int = 5) -> Policy:
    torch.manual_seed(0)
    return make_policy(token_spec(window), PyAgent(name=name, core=core, hidden_size=32))


@pytest.mark.parametrize("window", [5, 11])
@pytest.mark.parametrize("end_chance", [0, 0.02, 0.2])
@pytest.mark.parametrize("steps", [1, 8, 64])
def test_replaying_a_rollout_gives_what_it_was_played_with(window: int, end_chance: float, steps: int) -> None:
    check_replay(made(window=window), steps, end_chance)


@pytest.mark.parametrize(("name", "core"), OTHERS)
def test_every_policy_and_core_replays(name: str, core: str) -> None:
    check_replay(made(name, core))


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_replays_long_segments_in_a_wide_window(name: str) -> None:
    check_replay(made(name, window=11), 64, 0.02, rollouts=2)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "core"), OTHERS)
@pytest.mark.parametrize(
    ("window", "steps", "end_chance"), [(5, 1, 0.2), (5, 8, 0.2), (5, 64, 0.02), (11, 8, 0), (11, 64, 0.2)]
)
def test_everything_replays(name: str, core: str, window: int, steps: int, end_chance: float) -> None:
    check_replay(made(name, core, window), steps, end_chance)


@pytest.mark.parametrize(
    "env", [vector_env(), image_env(), image_env(40, 30, np.float32)], ids=["vector", "bytes", "image"]
)
@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("steps", [1, 8])
def test_fast_replays_vectors_and_images(env, core: str, steps: int) -> None:
    check_replay(make_policy(EnvSpec.of(env), PyAgent(core=core, hidden_size=32)), steps)


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("check", [check_boundaries, check_rows_are_apart, check_no_graph])
def test_memory_is_right_in_every_policy_and_core(check, name: str, core: str) -> None:
    check(made(name, core))


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("check", [check_log_probs, check_values_are_fractions, check_clipping])
def test_every_policy_gives_right_log_probs_and_normalises_and_clips(check, name: str) -> None:
    check(made(name))


@pytest.mark.parametrize("name", POLICIES)
def test_tokens_about_the_agent_itself_reach_the_policy(name: str) -> None:
    policy = made(name)
    tokens = torch.full((2, 12, 3), 0xFF, dtype=torch.uint8)
    tokens[1, 0] = torch.tensor([0xFE, 2, 5])
    features = policy.encode_observations(tokens)
    assert not torch.equal(features[0], features[1])


@pytest.mark.parametrize("name", POLICIES)
def test_an_observation_without_tokens_is_supported(name: str) -> None:
    policy = made(name)
    features = policy.encode_observations(torch.full((2, 12, 3), 0xFF, dtype=torch.uint8))
    features.sum().backward()
    assert features.isfinite().all()
    assert all(p.grad.isfinite().all() for p in policy.parameters() if p.grad is not None)
