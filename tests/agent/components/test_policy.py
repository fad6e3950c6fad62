"""ComponentPolicy: a YAML policy has memory, replay and weight tools like a Python policy."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from support.designs import DESIGNS, changed, design
from support.playing import play, random_observations, replay_difference, token_spec, vector_env
from tensordict import TensorDict

from engram import ComponentPolicy, EnvSpec
from engram.agent.components import COMPONENTS
from engram.agent.components.component import BuildContext, Component
from engram.agent.encoders.attention import EmbeddedTokens
from engram.agent.encoders.tokens import Tokens
from engram.agent.heads import Shortcut
from engram.agent.recurrent import CORES
from engram.env.parts import OBSERVATION, Part

VECTOR = EnvSpec.of(vector_env())
SMALL = {  # two recurrent components in a row
    "seen": {"kind": "linear", "sources": ["_obs_"], "size": 12, "nonlinearity": "relu"},
    "short": {"kind": "gru", "sources": ["seen"], "hidden_size": 8, "num_layers": 1},
    "_core_": {"kind": "lstm", "sources": ["short"], "hidden_size": 8},
    "both": {"kind": "concat", "sources": ["short[:4]", "_core_"]},
    "_value_": {"kind": "linear", "sources": ["both"], "size": 1},
    "_action_": {"kind": "linear", "sources": ["both"], "size": "actions"},
}


def image_spec(dtype: type = np.uint8) -> EnvSpec:
    return EnvSpec(
        name="pictures",
        single_observation_space=spaces.Box(0, 255, (12, 12, 3), dtype),
        single_action_space=spaces.Discrete(3),
        observation_kind="image",
    )


def acting_td(policy: ComponentPolicy, rows: int, seed: int = 0) -> TensorDict:
    generator = torch.Generator().manual_seed(seed)
    td = TensorDict({"env_obs": random_observations(policy.env_spec, (rows,), generator)}, [rows])
    td["training_env_id_start"] = torch.zeros(rows, dtype=torch.long)
    td["action_noise"] = torch.full((rows, 1), 0.5)
    return td


@pytest.mark.parametrize(("steps", "end_chance"), [(1, 0.2), (8, 0), (8, 0.02), (8, 0.2), (64, 0.02)])
@pytest.mark.parametrize("name", DESIGNS)
def test_replaying_a_rollout_gives_the_probabilities_it_was_played_with(
    name: str, steps: int, end_chance: float
) -> None:
    policy = ComponentPolicy(token_spec(5), design(name))
    rollouts = 1 if steps == 64 else 3
    assert replay_difference(policy, play(policy, 3, steps, end_chance, rollouts)) < 1e-5


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("name", DESIGNS)
def test_every_design_replays_with_every_core(name: str, core: str) -> None:
    policy = ComponentPolicy(VECTOR, changed(name, _core_={"kind": core}))
    for steps, end_chance in ((1, 0.02), (8, 0.2), (64, 0)):
        assert replay_difference(policy, play(policy, 5, steps, end_chance, rollouts=2)) < 1e-5


@pytest.mark.parametrize(
    "actions",
    [spaces.MultiDiscrete([3, 2]), spaces.Box(-1, 1, (2,)), spaces.Discrete(1)],
    ids=str,
)
@pytest.mark.parametrize("name", ["fast", "reference"])
def test_every_action_space_replays(name: str, actions: spaces.Space) -> None:
    policy = ComponentPolicy(vector_env(actions=actions), design(name))
    assert replay_difference(policy, play(policy, 5, 8, 0.1)) < 1e-5


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("name", DESIGNS)
def test_every_design_reads_images(name: str, dtype: type) -> None:
    policy = ComponentPolicy(image_spec(dtype), design(name))
    images = torch.randint(256, (2, 12, 12, 3)).to(torch.uint8 if dtype is np.uint8 else torch.float32)
    assert policy(TensorDict({"env_obs": images}, [2]))["values"].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64])
def test_vectors_of_any_dtype_are_read(dtype: torch.dtype) -> None:
    policy = ComponentPolicy(VECTOR, SMALL)
    assert policy(TensorDict({"env_obs": torch.ones(2, 5, dtype=dtype)}, [2]))["values"].dtype == torch.float32


@pytest.mark.parametrize(
    "spec", [token_spec(5), token_spec(11), VECTOR, image_spec()], ids=["5", "11", "vector", "image"]
)
@pytest.mark.parametrize("name", DESIGNS)
def test_every_output_has_the_shape_inferred_before_building(name: str, spec: EnvSpec) -> None:
    policy = ComponentPolicy(spec, design(name))
    given: dict[str, tuple[int, ...]] = {}

    def note(component: str):
        def hook(_module, _inputs, output) -> None:
            output = output[0] if component == "_core_" else output  # [T, B, H] and the state
            tensor = {Tokens: 2, EmbeddedTokens: 0}.get(type(output))
            given[component] = tuple((output if tensor is None else output[tensor]).shape)

        return hook

    for component, module in policy.components.items():
        module.register_forward_hook(note(component))
    shape = spec.single_observation_space.shape
    kind = torch.float32 if spec.observation_kind == "vector" else torch.uint8
    policy(TensorDict({"env_obs": torch.ones(2, *shape, dtype=kind)}, [2]))
    inferred = {step.name: step.output for step in policy.plan}
    assert given.keys() == inferred.keys()
    for component, sizes in given.items():
        batch = 0 if inferred[component].form == "embeddings" else 2 if component == "_core_" else 1
        assert sizes[batch:] == inferred[component].sizes


def test_components_for_other_environments_are_left_out() -> None:
    assert not {"vector", "shortcut"} & {*ComponentPolicy(token_spec(), design("fast")).components}
    assert [*ComponentPolicy(VECTOR, design("fast")).components][:4] == ["vector", "read1", "read2", "_core_"]
    assert (
        "_action_embeds_" not in ComponentPolicy(vector_env(actions=spaces.Box(-1, 1, (2,))), design("fast")).components
    )


def test_merges_compute_what_their_name_says() -> None:
    one, two = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 5.0]])
    results = {"concat": [1, 2, 3, 5], "add": [4, 7], "subtract": [-2, -3], "mean": [2, 3.5]}
    for kind, expected in results.items():
        assert COMPONENTS[kind]().build([], BuildContext(VECTOR, 2))(one, two).tolist() == [expected]


def test_a_sliced_source_is_that_slice() -> None:
    policy = ComponentPolicy(VECTOR, SMALL)
    with torch.no_grad():
        policy.components["_value_"].weight[:, 4:] = 0  # what is left reads short[:4]
    outputs = {}
    policy.components["both"].register_forward_hook(lambda _m, inputs, _o: outputs.update(parts=inputs))
    values = policy(acting_td(policy, 3))["values"]
    short = outputs["parts"][0]
    assert short.shape == (3, 4)
    expected = short @ policy.components["_value_"].weight[0, :4] + policy.components["_value_"].bias
    torch.testing.assert_close(values, expected)


def test_memory_is_stored_by_component_name() -> None:
    policy = ComponentPolicy(VECTOR, SMALL)
    assert policy.memory_shapes() == {"short": (1, 8), "_core_": (1, 16)}
    policy(acting_td(policy, 3))
    memory = policy.get_memory()
    assert memory.keys() == {"short", "_core_"}
    h, c = memory["_core_"]
    assert list(h) == list(c) == [0, 1, 2]
    assert h[0].shape == c[0].shape == (1, 8)
    assert memory["short"][1][0].shape == (1, 0)  # a GRU has no cell
    assert replay_difference(policy, play(policy, 5, 8, 0.2)) < 1e-5


def test_get_memory_is_a_copy_that_set_memory_restores() -> None:
    policy = ComponentPolicy(VECTOR, SMALL)
    play(policy, 4, 3, 0)
    saved, kept = policy.get_memory(), copy.deepcopy(policy.get_memory())
    future = policy(acting_td(policy, 4, seed=9))["full_log_probs"]
    assert all(torch.equal(row, kept[name][0][i]) for name, (h, _) in saved.items() for i, row in h.items())
    policy.reset_memory()
    assert policy.get_memory() == {"short": ({}, {}), "_core_": ({}, {})}
    policy.set_memory(saved)
    assert torch.equal(policy(acting_td(policy, 4, seed=9))["full_log_probs"], future)


@torch.no_grad()
@pytest.mark.parametrize("name", DESIGNS)
def test_event_counts_are_memory_that_is_replayed_saved_and_reset(name: str) -> None:
    symbols = Part(OBSERVATION, "symbols", spaces.Box(0, 3, (2,), np.int32), (4, 4))
    policy = ComponentPolicy(EnvSpec.of_parts("cards", [symbols], spaces.Discrete(5)), design(name))
    for component in policy.components.values():
        if isinstance(component, Shortcut):
            torch.nn.init.normal_(component.weight, std=0.1)  # 0 before training
    assert policy.memory_shapes()["counts"] == (1, 4 * 4 + 4 + 4)
    assert replay_difference(policy, play(policy, 5, 8, 0.2)) < 1e-5
    saved = policy.get_memory()
    assert saved["counts"][0][0].sum() >= 3  # a combination, and a value of each symbol
    future = policy(acting_td(policy, 5, seed=9))["full_log_probs"]
    policy.reset_env_memory(1)
    assert 1 not in policy.get_memory()["counts"][0]
    policy.set_memory(saved)
    assert torch.equal(policy(acting_td(policy, 5, seed=9))["full_log_probs"], future)


def test_resetting_one_row_resets_it_in_every_component() -> None:
    policy = ComponentPolicy(VECTOR, SMALL)
    policy(acting_td(policy, 3))
    policy.reset_env_memory(1)
    assert all([*h] == [0, 2] for h, _ in policy.get_memory().values())
    assert policy.has_memory()


def test_memory_of_other_components_is_an_error() -> None:
    policy = ComponentPolicy(VECTOR, SMALL)
    with pytest.raises(ValueError, match="got memory of lstm, expected that of the recurrent components short, _core_"):
        policy.set_memory({"lstm": ({}, {})})


def test_memory_carries_no_graph_and_is_not_part_of_the_weights() -> None:
    policy = ComponentPolicy(VECTOR, SMALL)
    assert policy(acting_td(policy, 3))["values"].requires_grad
    assert not any(store.memory_NLS.requires_grad for store in policy.stores().values())
    assert not any("memor" in name for name in policy.state_dict())


def test_weight_options_apply_to_their_component() -> None:
    components = copy.deepcopy(SMALL)
    components["_core_"] |= {"clip_scale": 0.1, "l2_init_scale": 0, "analyze_weights": False, "effective_rank": False}
    policy = ComponentPolicy(VECTOR, components, clip_range=0.5)
    policy.l2_init_loss()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 5
    rest = sum(p.numel() for name, p in policy.named_parameters() if "_core_" not in name)
    assert policy.l2_init_loss().item() == pytest.approx(25 * rest, rel=1e-3)
    policy.clip_weights()
    largest = [policy.components[name].weight_ih_l0.max().item() for name in ("short", "_core_")]
    assert largest == pytest.approx([0.5, 0.05])
    names = {name.split(".")[1] for name in policy.compute_weight_metrics()}
    assert names == {"seen", "short", "_value_", "_action_"}


@pytest.mark.parametrize("initialisation", ["orthogonal", "xavier", "normal", "max_0_01"])
def test_weights_are_initialised_as_configured(initialisation: str) -> None:
    components = copy.deepcopy(SMALL)
    for name in ("seen", "_core_"):
        components[name]["initialisation"] = initialisation
    policy = ComponentPolicy(VECTOR, components)
    seen, core = policy.components["seen"].weight, policy.components["_core_"].weight_ih_l0
    if initialisation == "max_0_01":
        assert [weight.abs().max().item() for weight in (seen, core)] == pytest.approx([0.01, 0.01])
    if initialisation == "orthogonal":
        torch.testing.assert_close(seen.T @ seen, 2 * torch.eye(5))  # ReLU follows
    if initialisation == "xavier":
        assert seen.abs().max() <= 2**0.5 * (6 / 17) ** 0.5


def test_dropout_is_off_in_evaluation() -> None:
    noise = {"kind": "dropout", "sources": ["_core_"], "p": 0.5, "allow_noise": True}
    policy = ComponentPolicy(
        VECTOR, SMALL | {"noise": noise, "both": {"kind": "concat", "sources": ["noise", "short"]}}
    )
    segments = play(policy, 5, 8, 0.1)
    assert replay_difference(policy, segments) > 1e-3
    policy.eval()
    assert replay_difference(policy, play(policy, 5, 8, 0.1)) < 1e-5


def test_a_deep_copy_has_its_own_memory() -> None:
    policy = ComponentPolicy(VECTOR, SMALL)
    twin = copy.deepcopy(policy)
    policy(acting_td(policy, 3))
    assert twin.get_memory()["_core_"] == ({}, {})


class DoubleComponent(Component):
    """Twice its input."""

    reads = ("features",)
    times: float = 2.0

    def output_shape(self, inputs, context):
        return inputs[0]

    def build(self, inputs, context):
        class Double(torch.nn.Module):
            def forward(self, x):
                return x * times

        times = self.times
        return Double()


def test_a_component_is_added_by_one_class_and_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMPONENTS, "double", DoubleComponent)
    double = {"tripled": {"kind": "double", "sources": ["both"], "times": 3.0}}
    value = {"_value_": {"kind": "linear", "sources": ["tripled"], "size": 1}}
    plain, tripled = ComponentPolicy(VECTOR, SMALL), ComponentPolicy(VECTOR, SMALL | double | value)
    tripled.load_state_dict(plain.state_dict())
    with torch.no_grad():
        plain.components["_value_"].weight.mul_(3)
    values = [policy(acting_td(policy, 3))["values"] for policy in (plain, tripled)]
    torch.testing.assert_close(*values)


def test_a_policy_takes_settings_or_components() -> None:
    policy = ComponentPolicy(VECTOR, components=SMALL, clip_range=0.2, analyze_weights_interval=10)
    assert (policy.clip_range, policy.analyze_weights_interval) == (0.2, 10)
    assert ComponentPolicy(VECTOR, design("fast")).clip_range == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fast", "reference"])
def test_acting_and_learning_compile_without_a_break_and_give_the_same_numbers(name: str) -> None:
    torch._dynamo.reset()
    policy = ComponentPolicy(token_spec(5), design(name))
    policy.reserve_memory(3)
    compiled = torch.compile(policy, fullgraph=True, backend="eager")
    td = acting_td(policy, 3)
    with torch.no_grad():
        expected = policy(td.clone())["full_log_probs"]
        policy.reset_memory()
        torch.testing.assert_close(compiled(td.clone())["full_log_probs"], expected, rtol=0, atol=1e-5)
    policy.reset_memory()
    assert replay_difference(compiled, play(policy, 3, 4, 0.3, rollouts=1)) < 1e-5
