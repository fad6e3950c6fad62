"""Graphs of components: every mistake is reported at once, with its component and the fix."""

import contextlib
import subprocess
import sys

import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from support.designs import DESIGNS, changed, design
from support.playing import token_spec, vector_env

from engram import ComponentPolicy, EnvSpec
from engram.agent.components import COMPONENTS
from engram.agent.components.graph import OBSERVATION, read_graph
from engram.config.load import load
from engram.settings import SettingsError, UserError

CONTINUOUS = EnvSpec.of(vector_env(actions=spaces.Box(-1, 1, (2,))))


def problems(spec: EnvSpec | None = None, **changes) -> list[str]:
    """The problems of the fast design after these changes."""
    with pytest.raises(SettingsError) as found:
        ComponentPolicy(spec or token_spec(11), changed("fast", **changes))
    return [line.removeprefix("agent.components").lstrip(".") for line in found.value.lines]


@pytest.mark.parametrize("name", DESIGNS)
def test_the_bundled_designs_have_no_problems(name: str) -> None:
    assert read_graph(design(name).components).problems.lines == []


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"fc1": {"sources": ["flat", "fc2"]}}, ": fc2 → fc1 → fc2 is a cycle"),
        ({"fc1": {"sources": ["flat", "fc1"]}}, ": fc1 → fc1 is a cycle"),
        ({"fc1": {"sources": ["flatt"]}}, "fc1.sources: no component 'flatt'; did you mean flat?"),
        ({"fc1": {"sources": ["flat[3]"]}}, "fc1.sources: 'flat[3]' is not the name of a component: write NAME"),
        ({"fc1": {"sources": 3}}, "fc1.sources: 3 is not a list of names"),
        ({"fc1": {"sources": []}}, "fc1.sources: linear takes 1 source, got none: name what it reads"),
        ({"fc1": {"sources": ["flat"] * 60}}, "takes 1 source, got 60 (flat, flat, flat, flat, flat, flat, …): merge"),
        ({"critic": {"sources": ["_core_", "actor"]}}, "critic.sources: linear takes 1 source, got 2 (_core_, actor)"),
        ({"_action_embeds_": {"sources": ["_core_"]}}, "action_embedding takes no sources, got 1 (_core_)"),
        ({"fc1": {"kind": "liner"}}, "fc1.kind: no kind 'liner'; did you mean linear?"),
        ({"fc1": {"kind": None}}, "fc1.kind: missing: give one of tokens_to_box"),
        ({"fc1": {"nonlinearty": "tanh"}}, "fc1.nonlinearty: linear has no such option; did you mean nonlinearity?"),
        ({"flat": {"size": 3}}, "flat.size: flatten has no such option: it has none"),
        ({"fc1": {"nonlinearity": "rleu"}}, "fc1.nonlinearity: 'rleu': input should be 'linear', 'relu'"),
        ({"fc1": {"size": 0}}, "fc1.size: 0: input should be greater than or equal to 1"),
        ({"cnn1": {"for": "token"}}, "cnn1.for: 'token' is not one of tokens"),
        ({"_value_": None}, ": _value_ is missing (the value, a linear of size: 1): add a component"),
        ({"_action_": None}, ": _action_ is missing"),
        ({"_core_": None}, ": _core_ is missing"),
        ({"_core_": {"kind": "conv2d"}}, "_core_.kind: conv2d, but this name is for the recurrent"),
        ({"_vlue_": {"kind": "linear", "size": 1}}, "_vlue_: only _core_, _action_embeds_, _action_, _value_ may"),
        ({"_obs_": {"kind": "linear"}}, "_obs_: reserved for the observation"),
        ({"a.b": {"kind": "linear"}}, "a.b: invalid name"),
        ({"values": {"kind": "linear", "size": 3, "sources": ["fc1"]}}, "values: reserved by PyTorch"),
        ({"extra": {"kind": "linear", "size": 3, "sources": ["fc1"]}}, "extra: unused: nothing reads it: make it a"),
        ({"fc1": {"sources": ["cnn2"]}}, "fc1: linear reads features, got box [64, 1, 1] from cnn2: put a flatten"),
        ({"fc2": {"sources": ["fc1[100:300]"]}}, "fc2.sources: fc1[100:300]: out of range for features [128]"),
        ({"cnn1": {"sources": ["_obs_[:3]"]}}, "cnn1.sources: _obs_[:3]: only box, sequence, features can be sliced"),
        ({"_value_": {"size": 2}}, "_value_: gives features [2], expected features [1]"),
        ({"_action_": {"kind": "linear", "size": 9, "sources": ["actor"]}}, "_action_: gives features [9], expected"),
        (
            {"scores": {"sources": ["_action_embeds_", "actor"]}},
            "scores: actor reads features, or features and action embed",
        ),
        (
            {"fc2": {"kind": "add", "sources": ["fc1", "flat"]}},
            "fc2: add needs sources of the same shape, got features [128]",
        ),
        ({"fc2": {"kind": "concat", "sources": ["fc1", "cnn2"]}}, "fc2: concat needs sources of the same shape except"),
        ({"fc2": {"kind": "normaliser", "sources": ["cnn2"]}}, "fc2: normaliser divides a box of the environment's 6"),
    ],
)
def test_a_mistake_is_reported_with_its_component_and_the_fix(changes, line: str) -> None:
    assert any(line in found for found in problems(**changes))


def test_all_mistakes_are_reported_at_once() -> None:
    found = problems(
        fc1={"sources": ["flat", "fc2"]},
        critic={"sources": ["_cor_"], "nonlinearty": "relu"},
        _value_=None,
        actor={"sources": ["cnn1"]},
        extra={"kind": "linear", "size": 3, "sources": ["fc2"]},
    )
    expected = [
        "is a cycle",
        "'_cor_'; did",
        "nonlinearty",
        "_value_ is missing",
        "actor: linear reads features",
        "extra: unused",
    ]
    assert all(any(part in line for line in found) for part in expected)


def test_one_mistake_gives_one_line() -> None:
    for changes in (
        {"fc1": {"sources": ["flatt"]}},
        {"fc1": {"kind": "liner"}},
        {"fc1": {"siz": 3, "size": 3}},
        {"critic": {"sources": ["_cor_"]}},
        {"extra": {"kind": "linear", "size": 3, "sources": ["fc1"]}},
    ):
        assert len(problems(**changes)) == 1


def test_every_cycle_is_reported() -> None:
    found = problems(cnn1={"sources": ["cnn2"]}, fc1={"sources": ["fc2", "flat"]})
    assert [line.split(" is a cycle")[0] for line in found if "cycle" in line] == [
        ": cnn2 → cnn1 → cnn2",
        ": fc2 → fc1 → fc2",
    ]


def test_components_that_lead_only_to_an_unused_one_are_reported_with_it() -> None:
    (line,) = problems(
        one={"kind": "linear", "size": 3, "sources": ["fc1"]}, two={"kind": "linear", "size": 3, "sources": ["one"]}
    )
    assert line.startswith("two: unused: nothing reads it, so one is unused too")


def test_an_observation_that_nothing_reads_is_reported() -> None:
    (line,) = problems(
        EnvSpec.of(vector_env()),
        vector={"for": "image"},
        shortcut=None,
        _action_={"sources": ["scores", "count_shortcut"]},
    )
    assert line.startswith("_core_: left out, since none of its sources is for SimpleNamespace (vector observations")


def test_a_token_component_with_other_observations_gets_the_fix() -> None:
    found = problems(EnvSpec.of(vector_env()), cnn1={"for": None})
    assert "cnn1: token_conv2d reads tokens, got features [5] from _obs_: leave it out here with `for: tokens`" in found


def test_an_embedding_of_continuous_actions_gets_the_fix() -> None:
    (line,) = problems(CONTINUOUS, _action_embeds_={"for": None})
    assert line.endswith("give it `for: discrete`")


def test_dropout_needs_allow_noise() -> None:
    noise = {"kind": "dropout", "p": 0.2, "sources": ["_core_"]}
    (line,) = problems(noise=noise, critic={"sources": ["noise"]})
    assert line.startswith("noise: p=0.2 makes replayed log-probabilities differ")
    ComponentPolicy(token_spec(), changed("fast", noise=noise | {"allow_noise": True}, critic={"sources": ["noise"]}))


@pytest.mark.parametrize("kind", ["os.system", "torch.nn.Linear", "engram.agent.heads:Critic", "__import__"])
def test_a_kind_must_be_a_registered_name(kind: str) -> None:
    assert any(f"fc1.kind: no kind '{kind}'" in line for line in problems(fc1={"kind": kind}))
    assert any("fc1._target_: linear has no such option" in line for line in problems(fc1={"_target_": kind}))


@pytest.mark.parametrize("data", [None, [], "linear", {}, {"fc1": "linear"}, {3: {}}, {"a": {"kind": []}}, {"": {}}])
def test_data_that_is_not_a_graph_is_a_user_error(data) -> None:
    with pytest.raises(UserError):
        ComponentPolicy(token_spec(), data)


words = st.sampled_from(
    ["a", "b", "_core_", "_value_", "_action_", OBSERVATION, "a[2:]", "", "linear", "lstm", *COMPONENTS]
)
values = st.one_of(words, st.none(), st.booleans(), st.integers(-3, 40), st.floats(), st.lists(words, max_size=3))
options = st.sampled_from(["kind", "sources", "for", "size", "channels", "kernel", "heads", "p", "embed_dim"])


@given(st.dictionaries(words, st.one_of(values, st.dictionaries(options, values, max_size=6)), max_size=8))
@settings(max_examples=200, deadline=None)
def test_no_data_crashes_the_check(data) -> None:
    with contextlib.suppress(UserError):
        ComponentPolicy(token_spec(), data)


def test_a_graph_is_checked_with_the_settings_and_before_torch_is_loaded(tmp_path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("components: {_core_: {kind: lstmm, sources: [_obs_]}}")
    with pytest.raises(SettingsError) as found:
        load([f"agent={file}", "env=recall", "trainer.total_timesteps=x"])
    assert "trainer.total_timesteps: 'x' is not a whole number" in found.value.lines
    assert "agent.components._core_.kind: no kind 'lstmm'; did you mean lstm?" in found.value.lines
    code = "import sys, engram.agent.components.graph; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_components_are_set_from_the_command_line() -> None:
    agent = load(["agent=fast", "env=recall", "agent.components._core_.kind=gru", "agent.clip_range=0.5"]).agent
    assert agent is not None
    assert agent.components["_core_"]["kind"] == "gru"
    assert agent.clip_range == 0.5
