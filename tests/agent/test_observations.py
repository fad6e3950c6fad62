"""Observations in parts: packed rows reach a policy by name, in every policy, acting and learning alike."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from support.parity import copy_weights
from tensordict import TensorDict

from engram.agent.encoders.parts import NormalizedOneHot, PartsEncoder, SymbolGridEncoder
from engram.agent.metta_agent import MettaAgent
from engram.agent.normalization import ObservationNormalizer
from engram.agent.observations import pack, unpack
from engram.agent.policy_factory import make_policy
from engram.agent.settings import PyAgent
from engram.agent.transfer import check_compatible
from engram.audit.scenario import random_observations
from engram.config.load import load
from engram.env.parts import Part, describe_parts
from engram.env.registry import make_spec
from engram.env.spec import EnvSpec
from engram.settings import UserError

ROWS = 5
SPACE = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (12, 10, 3), np.uint8),
        "heat": spaces.Box(0, 1, (9, 9, 1), np.float32),
        "map": spaces.Box(0, 10, (7, 7, 3), np.uint8),
        "move": spaces.MultiDiscrete([2, 5]),
        "place": spaces.Dict({"room": spaces.Discrete(4), "position": spaces.Box(-1, 1, (3,), np.float64)}),
    }
)
ACTIONS = {
    "one": spaces.Discrete(3),
    "several": spaces.MultiDiscrete([2, 3]),
    "continuous": spaces.Box(-1, 1, (2,), np.float32),
}


def spec_of(action="one", masks=False):
    parts = describe_parts(SPACE, "test", False, lambda: ())
    spec = EnvSpec.of_parts("test", parts, ACTIONS[action])
    return spec.with_action_mask() if masks else spec


def sizes_of(space):
    return [int(n) for n in space.nvec] if isinstance(space, spaces.MultiDiscrete) else [int(space.n)]


def masked_rows(spec, shape, generator):
    """Random observations, with masks that forbid about half of the actions."""
    rows = random_observations(spec, shape, generator)
    parts = unpack(spec, rows)
    if spec.action_mask:
        mask = torch.rand(*shape, spec.mask_size, generator=generator) < 0.5
        for part in mask.split(sizes_of(spec.single_action_space), -1):  # one action is always possible
            part[..., 0] |= ~part.any(-1)
        parts["action_mask"].copy_(mask)
    return rows


def play_and_replay(agent, steps, seed=0):
    """The largest difference between acting for some steps and learning from them at once."""
    spec, generator = agent.env_spec, torch.Generator().manual_seed(seed)
    rows = masked_rows(spec, (ROWS, steps), generator)
    starts = torch.rand(ROWS, steps, generator=generator) < 0.2
    fields = TensorDict({"env_obs": rows, "starts": starts}, [ROWS, steps])
    if agent.policy.previous is not None:
        for name, field in agent.policy.previous.fields().items():
            fields[name] = field.expand(ROWS, steps, *field.shape).clone()
        fields["previous_rewards"] = 5 * torch.randn(ROWS, steps, generator=generator)
    memory = agent.memory_of(torch.arange(ROWS))
    with torch.no_grad():
        acted = []
        for t in range(steps):
            acted.append(agent(fields[:, t].clone()))
            if t + 1 < steps and "previous_actions" in fields:
                fields["previous_actions"][:, t + 1] = acted[t]["actions"]
        played = {name: torch.stack([td[name] for td in acted], 1) for name in ("actions", "act_log_prob", "values")}
        expanded = {name: value.unsqueeze(1).expand(-1, steps, -1, -1) for name, value in memory.items()}
        fields["memory"] = TensorDict(expanded, [ROWS, steps])
        learned = agent(fields, action=played["actions"])
    differences = [learned["act_log_prob"] - played["act_log_prob"], learned["value"] - played["values"]]
    return max(difference.abs().max().item() for difference in differences), played, learned


def test_parts_are_unpacked_as_they_were_packed():
    spec = spec_of(masks=True)
    rows = random_observations(spec, (4, 3), torch.Generator().manual_seed(0))
    parts = unpack(spec, rows)
    assert {name: (tuple(part.shape[2:]), part.dtype) for name, part in parts.items()} == {
        "camera": ((12, 10, 3), torch.uint8),
        "heat": ((9, 9, 1), torch.float32),
        "map": ((7, 7, 3), torch.uint8),
        "move": ((2,), torch.int32),
        "place/position": ((3,), torch.float32),
        "place/room": ((), torch.int32),
        "action_mask": ((3,), torch.bool),
    }
    assert torch.equal(pack(spec, parts), rows)
    for name, view in spec.packing.views(rows.numpy()).items():
        np.testing.assert_array_equal(view, parts[name].numpy())


@pytest.mark.parametrize("steps", [1, 7, 64])
@pytest.mark.parametrize("policy", ["py_agent=fast", "agent=fast"])
def test_replaying_parts_gives_what_was_played(policy, steps):
    settings = load(["env=recall", policy]).policy
    torch.manual_seed(0)
    agent = MettaAgent(spec_of(masks=True), settings)
    for seed in range(2):
        assert play_and_replay(agent, steps, seed)[0] < 1e-5


@pytest.mark.parametrize("policy", ["latent_attn_tiny", "latent_attn_small", "latent_attn_med", "example"])
def test_every_ready_policy_reads_parts(policy):
    torch.manual_seed(0)
    agent = MettaAgent(spec_of(), PyAgent(name=policy, hidden_size=16))
    assert play_and_replay(agent, 7)[0] < 1e-5


@pytest.mark.parametrize("action", ["one", "several"])
def test_impossible_actions_have_probability_zero_and_are_never_played(action):
    torch.manual_seed(0)
    agent = MettaAgent(spec_of(action, masks=True), PyAgent(hidden_size=16))
    difference, played, learned = play_and_replay(agent, 40)
    assert difference < 1e-5
    sizes = sizes_of(ACTIONS[action])
    generator = torch.Generator().manual_seed(0)
    mask = unpack(agent.env_spec, masked_rows(agent.env_spec, (ROWS, 40), generator))["action_mask"]
    probabilities = learned["full_log_probs"].exp()
    assert (probabilities[~mask] == 0).all()
    actions = played["actions"].reshape(ROWS, 40, -1)
    for column, part in enumerate(mask.split(sizes, -1)):
        assert part.gather(-1, actions[..., column : column + 1]).all()
    entropy = torch.zeros(ROWS, 40)
    for part in probabilities.split(sizes, -1):
        entropy -= torch.xlogy(part, part).sum(-1)
    torch.testing.assert_close(learned["entropy"], entropy)


def test_a_mask_beside_a_plain_vector_leaves_the_observation_a_tensor():
    spec = EnvSpec("test", spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4), "vector").with_action_mask()
    agent = MettaAgent(spec, PyAgent(hidden_size=16))
    assert play_and_replay(agent, 7)[0] < 1e-5


def test_a_policy_reads_parts_by_name():
    from engram import LSTMWrapper

    class Own(LSTMWrapper):
        def __init__(self, env, **kwargs):
            super().__init__(env, input_size=8, hidden_size=8, num_layers=1, **kwargs)
            self.linear = torch.nn.Linear(12 * 10 * 3 + 3, 8)
            self.heads = torch.nn.Linear(8, 4)

        def encode_observations(self, observations):
            assert observations["camera"].dtype == torch.uint8
            camera = observations["camera"].flatten(1) / 255
            return self.linear(torch.cat([camera, observations["place/position"]], 1))

        def decode_actions(self, hidden):
            return self.heads(hidden).split([3, 1], 1)

    spec = spec_of()
    assert play_and_replay(MettaAgent(spec, Own(spec)), 7)[0] < 1e-5


GRID = Part("map", "symbols", spaces.Box(0, 4, (2, 2, 2), np.uint8), (5, 3))


def test_symbols_are_one_hots_of_every_cell():
    grid = torch.tensor([[[[4, 0], [1, 2]], [[0, 1], [2, 2]]]], dtype=torch.uint8)
    assert NormalizedOneHot(GRID)(grid)[0, :8].tolist() == [0, 0, 0, 0, 1, 1, 0, 0]
    assert NormalizedOneHot(GRID)(grid + 50).sum() == 0
    assert NormalizedOneHot(GRID, per_cell=True)(grid).shape == (4, 8)


def test_rare_symbols_stand_out():
    one_hot, common = NormalizedOneHot(GRID), torch.zeros(100, 2, 2, 2, dtype=torch.uint8)
    common[:5, 0, 0, 0] = 3
    seen = one_hot.encode(common).float()
    one_hot.update(torch.tensor(100.0), seen.mean(0), seen.var(0, correction=0))
    rare, usual = one_hot(common)[0], one_hot(common)[99]
    assert rare[3] == pytest.approx(0.95 / (0.05 * 0.95) ** 0.5)
    assert usual[0] == pytest.approx(0.05 / (0.05 * 0.95) ** 0.5)
    assert usual[8:].abs().max() == 0  # what is always the same tells nothing
    never = one_hot(torch.full((1, 2, 2, 2), 2, dtype=torch.uint8))
    assert never.abs().max() == pytest.approx(10)


def test_small_grids_are_read_as_a_whole_and_large_ones_by_convolutions():
    def reader(side):
        part = Part("", "symbols", spaces.Box(0, 15, (side, side, 3), np.uint8), (16, 16, 16))
        encoder = PartsEncoder(EnvSpec.of_parts("test", [part], spaces.Discrete(2)), 32)
        grid = torch.randint(16, (4, side, side, 3), dtype=torch.uint8)
        assert encoder(grid).shape == (4, 32)
        return encoder.reader.readers[0]

    assert isinstance(reader(7), NormalizedOneHot)
    assert isinstance(reader(25), SymbolGridEncoder)


def test_a_dict_space_of_a_vectorised_environment_has_parts():
    env = gymnasium.make_vec("Blackjack-v1")
    assert [part.name for part in EnvSpec.of(env).parts] == ["0", "1", "2"]


def test_a_missing_part_makes_an_environment_incompatible():
    spec = spec_of()
    with pytest.raises(UserError, match=r"no part 'place/room'"):
        check_compatible(spec, spec.with_parts(["camera", "heat", "map", "move", "place/position"]))
    check_compatible(spec.with_parts(["camera"]), spec)


def test_a_yaml_policy_reads_chosen_parts():
    from engram.agent.components.policy import ComponentPolicy

    components = {
        "eyes": {"kind": "parts_encoder", "sources": ["_obs_"], "parts": ["camera", "map"], "size": 16},
        "body": {"kind": "parts_encoder", "sources": ["_obs_"], "parts": ["place/position"], "size": 8},
        "seen": {"kind": "concat", "sources": ["eyes", "body"]},
        "_core_": {"kind": "lstm", "sources": ["seen"], "hidden_size": 16, "num_layers": 1},
        "_value_": {"kind": "linear", "sources": ["_core_"], "size": 1},
        "_action_embeds_": {"kind": "action_embedding", "size": 8},
        "_action_": {"kind": "actor", "sources": ["_core_", "_action_embeds_"]},
    }
    spec = spec_of()
    assert play_and_replay(MettaAgent(spec, ComponentPolicy(spec, components)), 7)[0] < 1e-5
    components["eyes"]["parts"] = ["camra"]
    with pytest.raises(UserError, match=r"no part 'camra'; did you mean camera"):
        ComponentPolicy(spec, components)


@pytest.mark.parametrize("steps", [1, 7, 64])
@pytest.mark.parametrize("action", [*ACTIONS])
def test_previous_actions_and_rewards_replay_as_they_were_played(action, steps):
    torch.manual_seed(0)
    agent = MettaAgent(spec_of(action), PyAgent(hidden_size=16, previous=["action", "reward"]))
    for seed in range(2):
        assert play_and_replay(agent, steps, seed)[0] < 1e-5


def test_the_previous_action_and_reward_matter_but_not_at_an_episode_start():
    torch.manual_seed(0)
    spec = spec_of()
    agent = MettaAgent(spec, PyAgent(hidden_size=16, previous=["action", "reward"]))
    rows = random_observations(spec, (4,), torch.Generator().manual_seed(0))

    @torch.no_grad()
    def value(action, reward, starts):
        agent.reset_memory()
        td = TensorDict({"env_obs": rows, "starts": torch.tensor([starts] * 4)}, [4])
        td["previous_actions"], td["previous_rewards"] = torch.full((4,), action), torch.full((4,), reward)
        return agent(td)["values"]

    assert torch.equal(value(1, 2.0, True), value(2, -3.0, True))
    assert not torch.isclose(value(1, 2.0, False), value(2, 2.0, False)).any()
    assert not torch.isclose(value(1, 2.0, False), value(1, -3.0, False)).any()


def test_a_call_without_the_previous_action_says_what_is_missing():
    spec = spec_of()
    agent = MettaAgent(spec, PyAgent(hidden_size=16, previous=["action"]))
    rows = random_observations(spec, (4,), torch.Generator().manual_seed(0))
    with pytest.raises(UserError, match="give the td the field 'previous_actions'"):
        agent(TensorDict({"env_obs": rows}, [4]))


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("policy", ["fast", "latent_attn_tiny", "example"])
def test_only_the_critic_sees_the_parts_that_are_its_own(policy, memory):
    torch.manual_seed(0)
    spec = spec_of(masks=True)
    options = {"critic_only": ["camera", "place/position"], "critic_memory": memory, "previous": ["action"]}
    agent = MettaAgent(spec, PyAgent(name=policy, hidden_size=16, **options))
    assert sorted(agent.memory_shapes()) == (["critic", "lstm"] if memory else ["lstm"])
    assert play_and_replay(agent, 7)[0] < 1e-5
    kept = agent.get_memory()
    assert next(iter(kept[0].values())).shape[0] == sum(layers for layers, _ in agent.memory_shapes().values())

    rows = random_observations(spec, (4,), torch.Generator().manual_seed(0))
    other = rows.clone()
    unpack(spec, other)["place/position"].add_(1)

    @torch.no_grad()
    def act(observations):
        agent.set_memory(kept)
        fields = {"env_obs": observations, "action_noise": torch.full((4, 1), 0.5)}
        fields["previous_actions"] = torch.zeros(4, dtype=torch.long)
        return agent(TensorDict(fields, [4]))

    first, second = act(rows), act(other)
    assert torch.equal(first["full_log_probs"], second["full_log_probs"])
    assert not torch.isclose(first["values"], second["values"]).any()
    assert torch.equal(act(rows)["values"], first["values"])


def test_unknown_parts_cannot_be_critic_only():
    with pytest.raises(UserError, match=r"py_agent.critic_only: test has no part 'camra'; did you mean camera"):
        MettaAgent(spec_of(), PyAgent(critic_only=["camra"]))
    with pytest.raises(UserError, match="nothing is left for the actor"):
        MettaAgent(spec_of(), PyAgent(critic_only=[part.name for part in spec_of().parts]))


@pytest.mark.parametrize("previous", [None, [], ["reward"]])
def test_python_and_yaml_read_the_previous_action_where_there_are_symbols(previous):
    python, yaml = PyAgent(previous=previous), load(["env=recall", "agent=fast"]).policy
    pair = [make_policy(spec_of(), each) for each in (python, yaml.model_copy(update={"previous": previous}))]
    copy_weights(*pair)  # the same network
    expected = ("action",) if previous is None else tuple(previous)
    assert [policy.previous.names if policy.previous else () for policy in pair] == [expected, expected]


def test_continuous_actions_and_vectors_bring_no_previous_action():
    vector = EnvSpec.of(gymnasium.make_vec("CartPole-v1"))
    assert [make_policy(spec, PyAgent()).previous for spec in (spec_of("continuous"), vector)] == [None, None]


def test_the_previous_action_is_a_part_that_a_policy_may_leave_out():
    spec = make_spec(load(["env=FrozenLake-v1"]).env)
    read = {
        str(previous): [part.name for part in MettaAgent(spec, PyAgent(previous=previous)).policy.actor_spec.parts]
        for previous in (None, ["action"], [], ["reward"])
    }
    both, alone = ["observation", "previous_action"], ["observation"]
    assert read == {"None": both, "['action']": both, "[]": alone, "['reward']": alone}


@pytest.mark.parametrize("previous", [None, ["action"], [], ["reward"], ["action", "reward"]])
def test_symbols_with_the_previous_action_or_reward_replay_exactly(previous):
    spec = make_spec(load(["env=Blackjack-v1"]).env)
    torch.manual_seed(0)
    agent = MettaAgent(spec, PyAgent(hidden_size=16, previous=previous))
    assert play_and_replay(agent, 7)[0] < 1e-5


@pytest.mark.parametrize("steps", [1, 7, 64])
@pytest.mark.parametrize(
    "options",
    [
        *({"name": name} for name in ("fast", "latent_attn_tiny", "latent_attn_small", "latent_attn_med", "example")),
        *({"core": core, "critic_memory": True} for core in ("lstm", "gru", "mingru", "lru", "attention")),
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_parts_masks_previous_step_normalisation_and_critic_together_replay_exactly(options, steps):
    torch.manual_seed(0)
    inputs = {"previous": ["action", "reward"], "critic_only": ["camera", "place/position"]}
    agent = MettaAgent(spec_of(masks=True), PyAgent(hidden_size=16, **inputs, **options))
    for module in agent.modules():
        if isinstance(module, ObservationNormalizer):
            module.update(torch.tensor(100.0), torch.randn_like(module.mean), torch.rand_like(module.variance) + 0.5)
    assert play_and_replay(agent, steps)[0] < 1e-5
