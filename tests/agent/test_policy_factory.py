"""Policies by name, from a file and from a module, and the errors when that fails."""

import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from gymnasium import spaces
from support.playing import play, replay_difference, token_spec, vector_env

from engram import EnvSpec, MettaAgent
from engram.agent.policies.base import Policy
from engram.agent.policy_factory import find_class, make_policy
from engram.agent.recurrent.core import Core
from engram.agent.recurrent.lru import LRU
from engram.agent.recurrent.lstm import LSTM
from engram.agent.settings import POLICIES, PyAgent
from engram.env.parts import Part, describe_parts
from engram.settings import UserError

ENCODES_AND_DECODES = """
from torch import nn
from engram import LSTMWrapper

class Mine(LSTMWrapper):
    def __init__(self, env, hidden_size=16, width=24, **kwargs):
        super().__init__(env, input_size=width, hidden_size=hidden_size, **kwargs)
        self.encoder = nn.Linear(env.single_observation_space.shape[0], width)
        self.actor = nn.Linear(hidden_size, env.single_action_space.n)
        self.critic = nn.Linear(hidden_size, 1)

    def encode_observations(self, observations):
        return self.encoder(observations).tanh()

    def decode_actions(self, hidden):
        return self.actor(hidden), self.critic(hidden)
"""

# Sizes read off the observations, the td flattened, state handled by the two building blocks: as policies used to be.
WRITES_ITS_OWN_FORWARD = """
import torch
from torch import nn
from engram import LSTMWrapper

class Mine(LSTMWrapper):
    def __init__(self, env, policy=None, input_size=24, hidden_size=16, num_layers=2):
        super().__init__(env, policy, input_size, hidden_size, num_layers)
        self.lstm = nn.LSTM(input_size, hidden_size, num_layers)
        self.fc = nn.Linear(env.single_observation_space.shape[0], input_size)
        self.actor = nn.Linear(hidden_size, env.single_action_space.n)
        self.critic = nn.Linear(hidden_size, 1)

    def forward(self, td, state=None, action=None):
        observations = td["env_obs"]
        B, TT = observations.shape[0], 1
        if action is not None:
            TT = observations.shape[1]
            td = td.reshape(B * TT)
            action = action.reshape(B * TT)
        td.set("bptt", torch.full((B * TT,), TT, device=observations.device, dtype=torch.long))
        td.set("batch", torch.full((B * TT,), B, device=observations.device, dtype=torch.long))

        hidden = torch.relu(self.fc(observations.reshape(B * TT, -1)))
        hidden = hidden.view(B, TT, -1).transpose(0, 1)

        lstm_h, lstm_c, env_id = self._manage_lstm_state(td, B, TT, observations.device)
        lstm_state = (lstm_h, lstm_c)
        lstm_output, (new_h, new_c) = self.lstm(hidden, lstm_state)
        self._store_lstm_state(new_h, new_c, env_id)

        flat = lstm_output.transpose(0, 1).reshape(B * TT, -1)
        logits, value = self.actor(flat), self.critic(flat)
        if action is None:
            return self.forward_inference(td, logits, value)
        return self.forward_training(td, action, logits, value)
"""


def written(directory: Path, text: str, name: str = "mine.py") -> Path:
    path = directory / name
    path.write_text(dedent(text), encoding="utf-8")
    return path


def made(name: str, **options) -> Policy:
    torch.manual_seed(2)
    return make_policy(EnvSpec.of(vector_env()), PyAgent(name=name, **options))


@pytest.mark.parametrize("name", POLICIES)
def test_bundled_policies_are_found_by_name(name: str) -> None:
    policy = make_policy(token_spec(), PyAgent(name=name, hidden_size=8, num_layers=1, core="gru"))
    assert type(policy).__name__.lower() == name.replace("_", "")
    assert policy.memory_shapes() == {"lstm": (1, 8)}


@pytest.mark.parametrize("text", [ENCODES_AND_DECODES, WRITES_ITS_OWN_FORWARD], ids=["template", "own forward"])
@pytest.mark.parametrize("end_chance", [0, 0.02, 0.2])
@pytest.mark.parametrize("steps", [1, 8, 64])
def test_a_policy_from_a_file_replays(tmp_path: Path, text: str, end_chance: float, steps: int) -> None:
    policy = made(f"{written(tmp_path, text)}:Mine")
    assert replay_difference(policy, play(policy, 6, steps, end_chance)) < 1e-5


@pytest.mark.parametrize("text", [ENCODES_AND_DECODES, WRITES_ITS_OWN_FORWARD], ids=["template", "own forward"])
def test_a_policy_from_a_module_replays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "their_package").mkdir()
    written(tmp_path / "their_package", "", "__init__.py")
    written(tmp_path / "their_package", text, "policy.py")
    monkeypatch.syspath_prepend(tmp_path)
    policy = made("their_package.policy:Mine")
    assert replay_difference(policy, play(policy, 6, 8, 0.2)) < 1e-5
    for module in ("their_package.policy", "their_package"):
        monkeypatch.delitem(sys.modules, module)


def test_options_reach_a_policy_that_takes_them(tmp_path: Path) -> None:
    place = f"{written(tmp_path, ENCODES_AND_DECODES)}:Mine"
    policy = made(place, width=10, clip_range=0.5, analyze_weights_interval=9, core="mingru", num_layers=3)
    assert policy.encoder.out_features == 10
    assert policy.memory_shapes() == {"lstm": (3, 16)}
    assert (policy.clip_range, policy.analyze_weights_interval) == (0.5, 9)
    with pytest.warns(UserWarning, match="nothing uses the option widht; did you mean width"):
        assert made(place, widht=10).unused_arguments == {"widht": 10}


def test_a_policy_without_kwargs_gets_the_common_options(tmp_path: Path) -> None:
    place = f"{written(tmp_path, WRITES_ITS_OWN_FORWARD)}:Mine"
    policy = made(place, clip_range=0.5, analyze_weights_interval=9, hidden_size=8)
    assert (policy.clip_range, policy.analyze_weights_interval) == (0.5, 9)
    assert policy.memory_shapes() == {"lstm": (2, 16)}
    assert policy.unused_arguments == {}
    with pytest.warns(UserWarning, match=r"nothing uses the option core; let __init__ take \*\*kwargs"):
        assert made(place, core="gru").unused_arguments == {"core": "gru"}


def test_an_agent_is_made_from_the_same_settings(tmp_path: Path) -> None:
    settings = PyAgent(name=f"{written(tmp_path, ENCODES_AND_DECODES)}:Mine", hidden_size=8)
    agent = MettaAgent(vector_env(), settings)
    assert agent.memory_shapes() == {"lstm": (2, 16)}
    assert replay_difference(agent, play(agent, 4, 5, 0.2)) < 1e-5


def test_lazy_layers_read_their_sizes_off_the_environment(tmp_path: Path) -> None:
    lazy = ENCODES_AND_DECODES.replace(
        "nn.Linear(env.single_observation_space.shape[0], width)", "nn.LazyLinear(width)"
    )
    policy = made(f"{written(tmp_path, lazy)}:Mine")
    assert policy.encoder.in_features == EnvSpec.of(vector_env()).single_observation_space.shape[0]
    assert not policy.get_memory()[0]
    assert replay_difference(policy, play(policy, 6, 8, 0.2)) < 1e-5

    uncalled = lazy.replace("self.encoder(observations)", "observations.sum(1, keepdim=True).expand(-1, 24)")
    with pytest.raises(UserError, match=r"encoder\.weight, encoder\.bias: lazy layers that forward does not call"):
        made(f"{written(tmp_path, uncalled, 'uncalled.py')}:Mine")


def test_two_files_of_the_same_name_do_not_mix(tmp_path: Path) -> None:
    for folder, size in (("a", 16), ("b", 20)):
        (tmp_path / folder).mkdir()
        written(tmp_path / folder, ENCODES_AND_DECODES.replace("hidden_size=16", f"hidden_size={size}"))
    first, second = (made(f"{tmp_path / folder / 'mine.py'}:Mine") for folder in ("a", "b"))
    assert (first.hidden_size, second.hidden_size) == (16, 20)


def test_an_unknown_policy_is_an_error_with_the_known_ones(tmp_path: Path) -> None:
    path = written(tmp_path, ENCODES_AND_DECODES)
    broken = written(tmp_path, "import nothing_of_this_name", "broken.py")
    plain = written(tmp_path, "class Plain:\n    pass", "plain.py")
    for name, message in (
        ("fasst", "did you mean fast"),
        ("nothing like it", "choose from fast, latent_attn_tiny"),
        (f"{tmp_path / 'gone.py'}:Mine", r"no such file: .*gone\.py"),
        (f"{path}:Mime", "has no Mime; did you mean Mine"),
        (f"{broken}:Mine", r"broken\.py could not be loaded: ModuleNotFoundError"),
        (f"{plain}:Plain", "must be a subclass of engram.LSTMWrapper"),
        ("no.such.module:Mine", "no.such.module could not be imported"),
    ):
        with pytest.raises(UserError, match=message):
            find_class(name)


def test_a_policy_that_fails_is_an_error_with_its_source_location(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    raising = written(tmp_path, "raise LookupError('not today')", "raising_policy.py")
    unmade = written(tmp_path, ENCODES_AND_DECODES.replace("width)", "'wide')"), "unmade.py")
    for name, said, place in (
        (f"{raising}:Mine", "could not be loaded: LookupError: not today", raising),
        ("raising_policy:Mine", "could not be imported: LookupError: not today", raising),
        (f"{unmade}:Mine", "could not be made: TypeError: ", unmade),
    ):
        with pytest.raises(UserError) as caught:
            made(name)
        first, *frames = str(caught.value).splitlines()
        assert first.startswith("py_agent: ")
        assert said in first
        assert any(frame.startswith(f"  {place}:") for frame in frames)


def parts_of(space: spaces.Space) -> list[Part]:
    return describe_parts(space, "env", symbols=None, play=lambda: ())


CARDS = EnvSpec.of_parts("cards", parts_of(spaces.Tuple((spaces.Discrete(4), spaces.Discrete(2)))), spaces.Discrete(3))
MIXED = EnvSpec.of_parts(
    "mixed",
    parts_of(spaces.Dict({"card": spaces.Discrete(4), "speed": spaces.Box(-1, 1, (2,))})),
    spaces.Discrete(3),
)


@pytest.mark.parametrize(
    ("spec", "options", "core", "previous"),
    [
        (CARDS, {}, LRU, ["action"]),
        (CARDS, {"core": "lstm", "previous": []}, LSTM, []),
        (MIXED, {}, LSTM, ["action"]),
        (EnvSpec.of(vector_env()), {}, LSTM, None),
        (token_spec(), {}, LSTM, None),
    ],
    ids=["only symbols", "as the settings say", "symbols and a vector", "vector", "tokens"],
)
def test_bundled_policies_have_the_core_and_inputs_that_suit_the_observations(
    spec: EnvSpec, options: dict[str, Any], core: type[Core], previous: list[str] | None
) -> None:
    policy = make_policy(spec, PyAgent(**options))
    assert type(policy.core) is core
    assert policy.previous_inputs == previous
