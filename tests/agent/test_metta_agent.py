"""MettaAgent: a policy in environments with other feature ids, and what it forwards to the policy."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from support.designs import DESIGNS, design
from support.playing import play, random_observations, replay, replay_difference, token_spec, vector_env
from tensordict import TensorDict
from torch import Tensor

from engram import EnvSpec, Fast, MettaAgent
from engram.agent.settings import POLICIES, PyAgent, YamlAgent
from engram.env.spec import Feature
from engram.settings import UserError

NAMES = ("wall", "mine", "altar", "agent", "ore", "heart")


def spec_of(*names: str, scale: float = 10.0, **changes) -> EnvSpec:
    """An environment with these features, numbered in this order."""
    features = tuple(Feature(i, name, scale + len(name)) for i, name in enumerate(names))
    return replace(token_spec(), features=features, action_names=("noop", "north", "south", "west", "east"), **changes)


HOME = spec_of(*NAMES)
ABROAD = spec_of(*reversed(NAMES))


def agent_at_home(settings: PyAgent | YamlAgent | None = None) -> MettaAgent:
    torch.manual_seed(0)
    return MettaAgent(HOME, settings or PyAgent(hidden_size=8, num_layers=1))


def tokens(*triples: tuple[int, int, int], rows: int = 1) -> Tensor:
    return torch.tensor(triples, dtype=torch.uint8).expand(rows, -1, -1)


def translated(observations: Tensor, of: EnvSpec, to: EnvSpec) -> Tensor:
    """The same tokens with the ids of another environment."""
    ids = {feature.name: feature.id for feature in to.features}
    result = observations.clone()
    for feature in of.features:
        result[..., 1][observations[..., 1] == feature.id] = ids[feature.name]
    return result


def acting_td(observations: Tensor) -> TensorDict:
    rows = observations.shape[0]
    none, half = torch.zeros(rows, dtype=torch.bool), torch.full((rows, 1), 0.5)
    return TensorDict({"env_obs": observations, "dones": none, "truncateds": none, "action_noise": half}, [rows])


def answer(agent: MettaAgent, observations: Tensor) -> Tensor:
    """The log-probabilities of an agent with empty memory."""
    agent.reset_memory()
    with torch.no_grad():
        result = agent(acting_td(observations))
    return torch.cat([result["full_log_probs"], result["values"].unsqueeze(1)], dim=1)


def random_tokens(rows: int = 5) -> Tensor:
    return random_observations(HOME, (rows,), torch.Generator().manual_seed(3))


def test_features_are_matched_by_name_when_their_ids_differ() -> None:
    agent, observations = agent_at_home(), random_tokens()
    expected = answer(agent, observations)
    agent.bind(ABROAD)
    assert torch.equal(answer(agent, translated(observations, HOME, ABROAD)), expected)
    assert not torch.equal(answer(agent, observations), expected)


def test_an_agent_around_a_trained_policy_maps_features_too() -> None:
    policy, observations = agent_at_home().policy, random_tokens()
    expected = answer(MettaAgent(HOME, policy), observations)
    assert torch.equal(answer(MettaAgent(ABROAD, policy), translated(observations, HOME, ABROAD)), expected)


def test_nothing_is_mapped_if_the_ids_agree() -> None:
    agent = agent_at_home()
    agent.bind(spec_of(*NAMES[:4]))
    assert agent.feature_map is None
    td = acting_td(random_tokens())
    assert agent(td) is td


def test_a_rollout_with_mapped_features_replays() -> None:
    agent = agent_at_home()
    agent.bind(ABROAD)
    assert replay_difference(agent, play(agent, 5, 8, 0.1, spec=ABROAD)) < 1e-5


def test_results_go_to_the_callers_td_and_its_observations_are_unchanged() -> None:
    agent = agent_at_home()
    agent.bind(ABROAD)
    observations = random_tokens()
    before, td = observations.clone(), acting_td(observations)
    result = agent(td)
    assert result is td
    assert {"actions", "act_log_prob", "values", "full_log_probs", "bptt", "batch"} <= set(td.keys())
    assert torch.equal(td["env_obs"], before)
    assert torch.equal(observations, before)
    (segment,) = play(agent, 3, 4, 0.1, rollouts=1, spec=ABROAD)
    learned = replay(agent, segment)
    assert learned.batch_size == (3, 4)
    assert torch.equal(learned["env_obs"], segment.fields["env_obs"])


def test_unknown_features_are_padding_in_evaluation() -> None:
    agent = agent_at_home().eval()
    abroad = spec_of("lava", *NAMES)  # lava has the id that walls had at home
    agent.bind(abroad)
    seen = tokens((0x11, 0, 7), (0x12, 1, 9), (0xFF, 0xFF, 0xFF))
    assert agent.feature_map is not None
    assert agent.feature_map(seen).tolist() == [[[0xFF] * 3, [0x12, 0, 9], [0xFF] * 3]]
    without = tokens((0xFF, 0xFF, 0xFF), (0x12, 1, 9), (0xFF, 0xFF, 0xFF))
    assert torch.equal(answer(agent, seen), answer(agent, without))


def test_unannounced_ids_are_padding_too() -> None:
    agent = agent_at_home()
    agent.bind(ABROAD)
    assert agent.feature_map is not None
    assert agent.feature_map(tokens((0x11, 200, 7))).tolist() == [[[0xFF] * 3]]


@pytest.mark.parametrize("name", POLICIES)
def test_unknown_features_are_learned_in_training_and_nothing_is_lost(name: str) -> None:
    check_growth(agent_at_home(PyAgent(name=name, hidden_size=8, num_layers=1)))


@pytest.mark.parametrize("name", DESIGNS)
def test_a_policy_from_yaml_learns_unknown_features_too(name: str) -> None:
    check_growth(agent_at_home(design(name)))


def check_growth(agent: MettaAgent) -> None:
    observations = random_tokens()
    shapes = {key: p.shape for key, p in agent.named_parameters()}
    expected = answer(agent, observations)
    abroad = spec_of("lava", *NAMES, "water")
    agent.bind(abroad)
    assert [feature.name for feature in agent.policy.env_spec.features] == [*NAMES, "lava", "water"]
    torch.testing.assert_close(answer(agent, translated(observations, HOME, abroad)), expected)
    rest = [(0xFF, 0xFF, 0xFF)] * 10
    seen, unlike = tokens((0x11, 0, 7), (0x12, 1, 9), *rest), tokens((0x12, 1, 9), *rest, rest[0])
    assert not torch.equal(answer(agent, seen), answer(agent, unlike))
    agent.reset_memory()
    agent(acting_td(seen))["values"].sum().backward()
    grown = [p for key, p in agent.named_parameters() if p.shape != shapes[key]]
    assert grown
    assert any(p.grad.any() for p in grown)
    agent.eval().bind(abroad)
    assert not torch.equal(answer(agent, seen), answer(agent, unlike))  # what was learned is not masked afterwards


def test_memory_capacity_and_dtype_survive_growth() -> None:
    agent = agent_at_home().double()
    agent.reserve_memory(9)
    agent.bind(spec_of(*NAMES, "lava"))
    assert agent.policy.stores()["lstm"].capacity == 9
    assert next(agent.parameters()).dtype == torch.double


def test_a_policy_without_settings_cannot_grow_and_the_error_says_what_to_do() -> None:
    policy = Fast(HOME)
    with pytest.raises(UserError, match=r"does not know the features lava.*with_new_features.*policy\.eval\(\)"):
        MettaAgent(spec_of(*NAMES, "lava"), policy)
    assert MettaAgent(spec_of(*NAMES, "lava"), policy.eval()).feature_map is not None


def test_a_known_feature_keeps_the_policys_own_normalisation() -> None:
    agent, observations = agent_at_home(), random_tokens()
    expected = answer(agent, observations)
    agent.bind(spec_of(*NAMES, scale=100.0))
    assert torch.equal(answer(agent, observations), expected)


def test_initialising_to_an_environment_takes_features_as_a_dictionary() -> None:
    agent, observations = agent_at_home(), random_tokens()
    expected = answer(agent, observations)
    features = {feature.name: {"id": feature.id, "normalization": 1.0, "type": "scalar"} for feature in ABROAD.features}
    agent.initialize_to_environment(features, HOME.action_names, [0] * 5, "cpu")
    assert torch.equal(answer(agent, translated(observations, HOME, ABROAD)), expected)
    agent.initialize_to_environment(HOME.features, HOME.action_names)
    assert torch.equal(answer(agent, observations), expected)


def test_a_different_environment_starts_with_empty_memory() -> None:
    agent = agent_at_home()
    agent(acting_td(random_tokens()))
    assert agent.get_memory()[0]
    agent.bind(ABROAD)
    assert agent.get_memory() == ({}, {})


def test_an_environment_may_have_a_different_number_of_tokens() -> None:
    agent, observations = agent_at_home(), random_tokens()
    expected = answer(agent, observations)
    agent.bind(replace(HOME, single_observation_space=spaces.Box(0, 255, (20, 3), np.uint8)))
    assert agent.get_agent_experience_spec()["env_obs"].shape == (20, 3)
    more = torch.cat([observations, torch.full((5, 8, 3), 0xFF, dtype=torch.uint8)], dim=1)
    torch.testing.assert_close(answer(agent, more), expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"action_names": ("noop", "north", "south", "west", "jump")}, "no action east; the policy has no action jump"),
        ({"action_names": ("noop", "south", "north", "west", "east")}, "action 1 is north for the policy and south"),
        (
            {"single_action_space": spaces.Discrete(6), "action_names": ()},
            "the policy has 5 actions, the environment 6 actions",
        ),
        (
            {"single_action_space": spaces.MultiDiscrete([2, 3])},
            "the policy has 5 actions, the environment choices among 2 x 3",
        ),
        ({"window": (7, 7)}, "reads observations of 5 x 5, the environment gives 7 x 7"),
    ],
)
def test_an_incompatible_environment_is_an_error_with_the_reason(changes: dict, message: str) -> None:
    agent = agent_at_home()
    with pytest.raises(UserError, match=message):
        agent.bind(replace(HOME, **changes))
    with pytest.raises(UserError, match="the policy reads tokens, the environment gives vectors"):
        agent.bind(vector_env(actions=spaces.Discrete(5)))


def test_an_incompatible_environment_changes_nothing() -> None:
    agent = agent_at_home()
    with pytest.raises(UserError):
        agent.bind(replace(ABROAD, single_action_space=spaces.Discrete(6)))
    assert agent.env_spec is HOME
    assert agent.feature_map is None


def test_actions_given_by_name_alone_are_counted() -> None:
    with pytest.raises(UserError, match=r"5 actions, the environment 6 actions; the policy has no action jump"):
        agent_at_home().initialize_to_environment(HOME.features, [*HOME.action_names, "jump"])


def test_a_flat_index_is_the_action_where_actions_are_discrete() -> None:
    agent = agent_at_home()
    assert agent.convert_index_to_action(3) == 3
    assert agent.convert_action_to_index(torch.tensor([0, 4])).tolist() == [0, 4]
    for wrong in (5, -1):
        with pytest.raises(ValueError, match="from 0 to 4"):
            agent.convert_index_to_action(wrong)
        with pytest.raises(ValueError, match="is not an action of"):
            agent.convert_action_to_index(wrong)


def test_a_flat_index_counts_the_parameters_of_each_type_of_action() -> None:
    env = vector_env(actions=spaces.MultiDiscrete([3, 4]))
    env.action_max_params = (0, 3, 1)
    agent = MettaAgent(env, Fast(env))
    index = torch.arange(7)
    actions = agent.convert_index_to_action(index)
    assert actions.tolist() == [[0, 0], [1, 0], [1, 1], [1, 2], [1, 3], [2, 0], [2, 1]]
    assert torch.equal(agent.convert_action_to_index(actions), index)
    assert agent.convert_action_to_index((1, 2)) == 3
    for wrong in ((0, 1), (2, 2), (3, 0), (-1, 0), (1, -1)):
        with pytest.raises(ValueError, match="is not an action of"):
            agent.convert_action_to_index(wrong)
    with pytest.raises(UserError, match=r"parameters up to 0, 3, 1, the environment action types .* up to 0, 2, 1"):
        agent.initialize_to_environment((), ("a", "b", "c"), (0, 2, 1))


def test_continuous_actions_have_no_index() -> None:
    env = vector_env(actions=spaces.Box(-1, 1, (2,)))
    with pytest.raises(ValueError, match="no flat index"):
        MettaAgent(env, Fast(env)).convert_index_to_action(0)


def test_memory_is_forwarded_to_the_policy() -> None:
    agent = agent_at_home()
    agent(acting_td(random_tokens(4)))
    saved = agent.get_memory()
    agent.reset_env_memory(2)
    assert list(agent.get_memory()[0]) == [0, 1, 3]
    agent.set_memory(saved)
    assert list(agent.get_memory()[0]) == [0, 1, 2, 3]
    assert agent.has_memory()
    agent.reset_memory()
    assert agent.get_memory() == ({}, {})


def test_stored_memory_is_restored_from_tensors() -> None:
    agent, other = agent_at_home(), agent_at_home()
    agent(acting_td(random_tokens(4)))
    other.load_stored_memory({name: tensor.clone() for name, tensor in agent.stored_memory().items()})
    assert torch.equal(agent(acting_td(random_tokens(4)))["values"], other(acting_td(random_tokens(4)))["values"])


def test_configuration_reaches_the_policy_and_its_weights() -> None:
    agent = agent_at_home(PyAgent(clip_range=0.05, analyze_weights_interval=7, hidden_size=8, num_layers=3))
    assert (agent.policy.analyze_weights_interval, agent.policy.lstm.num_layers) == (7, 3)
    assert agent.l2_init_loss() == 0
    agent.clip_weights()
    assert max(p.abs().max().item() for p in agent.recurrent_parameters()) == pytest.approx(0.05)
    loss = agent.l2_init_loss()
    loss.backward()
    assert loss > 0
    assert agent.policy.lstm.weight_hh_l2.grad.any()
    agent.update_l2_init_weight_copy()
    assert agent.l2_init_loss() == 0
    assert "core.weight_hh_l0/effective_rank" in agent.compute_weight_metrics()
