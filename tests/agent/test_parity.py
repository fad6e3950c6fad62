"""Parity: `agent=X` and `py_agent=X` are the same network."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from support.designs import PAIRS, changed, design
from support.parity import copy_weights, python_parameters
from support.playing import Segment, play, replay, token_spec, vector_env

from engram import ComponentPolicy, EnvSpec
from engram.agent.policies.base import Policy
from engram.agent.policy_factory import make_policy
from engram.agent.settings import PyAgent
from engram.env.parts import OBSERVATION, Part

SPECS = {
    "window 11": token_spec(11),
    "window 5": token_spec(5),
    "vector": EnvSpec.of(vector_env()),
    "continuous": EnvSpec.of(vector_env(actions=spaces.Box(-1, 1, (2,)))),
    "cards": EnvSpec.of_parts(
        "cards", [Part(OBSERVATION, "symbols", spaces.Box(0, 3, (2,), np.int32), (4, 4))], spaces.Discrete(5)
    ),
    "factored": EnvSpec.of(vector_env(actions=spaces.MultiDiscrete([3, 2]))),
}


def twins(name: str, spec: EnvSpec, core: str = "lstm") -> tuple[Policy, Policy]:
    python = make_policy(spec, PyAgent(name=name, core=core, previous=[]))
    return ComponentPolicy(spec, changed(name, _core_={"kind": core})), python


def played(policy: Policy) -> list[Segment]:
    torch.manual_seed(2)  # of the actions
    return play(policy, rows=3, steps=4, end_chance=0.2, rollouts=2)


def outputs_and_gradients(policy: Policy, segments) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    replayed = [replay(policy, segment) for segment in segments]
    loss = sum((td["act_log_prob"].sum() + td["value"].square().sum() + td["entropy"].sum()) for td in replayed)
    policy.zero_grad()
    loss.backward()
    fields = [td[name] for td in replayed for name in ("act_log_prob", "value", "entropy", "full_log_probs")]
    return fields, {name: parameter.grad for name, parameter in python_parameters(policy).items()}


@pytest.mark.parametrize("direction", ["to python", "to yaml"])
@pytest.mark.parametrize("where", SPECS)
@pytest.mark.parametrize("name", PAIRS)
def test_with_copied_weights_outputs_and_gradients_are_equal(name: str, where: str, direction: str) -> None:
    yaml, python = twins(name, SPECS[where])
    for policy in (yaml.components, python):
        for shortcut in ("shortcut", "count_shortcut"):
            if getattr(policy, shortcut, None) is not None:  # 0 before training
                torch.nn.init.normal_(getattr(policy, shortcut).weight, std=0.1)
    copy_weights(*((yaml, python) if direction == "to python" else (python, yaml)))
    segments = played(python)
    for one, other in zip(played(yaml), segments, strict=True):
        for field in ("act_log_prob", "values", "full_log_probs"):
            torch.testing.assert_close(one.fields[field], other.fields[field], rtol=0, atol=1e-6)
    for segment in segments:
        segment.memory["_core_"] = segment.memory["lstm"]
    (yaml_fields, yaml_grads), (fields, grads) = (outputs_and_gradients(policy, segments) for policy in (yaml, python))
    torch.testing.assert_close(yaml_fields, fields, rtol=0, atol=1e-6)
    assert all(grad is not None for grad in grads.values())
    torch.testing.assert_close(yaml_grads, grads, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("core", ["gru", "mingru", "lru", "attention"])
def test_the_other_cores_have_parity_too(core: str) -> None:
    yaml, python = twins("fast", SPECS["window 5"], core)
    copy_weights(yaml, python)
    for one, other in zip(played(yaml), played(python), strict=True):
        torch.testing.assert_close(one.fields["values"], other.fields["values"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("where", SPECS)
@pytest.mark.parametrize("name", PAIRS)
def test_the_default_core_and_its_layers_are_the_same(name: str, where: str) -> None:
    yaml, python = make_policy(SPECS[where], design(name)), make_policy(SPECS[where], PyAgent(name=name))
    assert type(yaml.components["_core_"]) is type(python.core)
    assert yaml.components["_core_"].num_layers == python.core.num_layers
    assert ("counts" in yaml.components) == (python.event_counts is not None) == (where == "cards")


@pytest.mark.parametrize("where", SPECS)
@pytest.mark.parametrize("name", PAIRS)
def test_initial_weights_have_the_same_distribution(name: str, where: str) -> None:
    torch.manual_seed(0)
    yaml, python = (python_parameters(policy) for policy in twins(name, SPECS[where]))
    assert yaml.keys() == python.keys()
    for key, parameter in python.items():
        assert yaml[key].shape == parameter.shape
        # Orthogonal weights always have the same norm; those scaled to a largest value, or 0 for some inputs, about.
        scaled = key in ("actor.embedding.weight", "actor.output.weight", "actor.output.mean.weight")
        tolerance = 0.5 if scaled else 0.02 if where == "cards" else 1e-3
        assert yaml[key].norm().item() == pytest.approx(parameter.norm().item(), rel=tolerance)


def test_weights_are_copied_only_between_equal_networks() -> None:
    (yaml, _), (_, python) = twins("fast", SPECS["window 5"]), twins("fast", SPECS["window 11"])
    with pytest.raises(
        ValueError, match=r"encoder.conv1.conv.weight is \[64, 6, 3, 3\] in the source and \[64, 6, 5, 5\]"
    ):
        copy_weights(yaml, python)
    with pytest.raises(ValueError, match="is in only one of the two"):
        copy_weights(yaml, twins("latent_attn_tiny", SPECS["window 5"])[1])


def test_settings_from_yaml_reach_the_policy() -> None:
    settings = design("fast").model_copy(update={"clip_range": 0.3, "analyze_weights_interval": 7})
    policy = make_policy(token_spec(), settings)
    assert isinstance(policy, ComponentPolicy)
    assert (policy.clip_range, policy.analyze_weights_interval) == (0.3, 7)
