"""`engram audit`: targets, options and exit codes."""

import json
import sys
from pathlib import Path

import pytest

from engram.api.audit import ALL, targets
from engram.cli.audit import parse
from engram.cli.main import main
from engram.config.load import load
from engram.settings import UserError

QUICK = ["--only", "detachment,boundary_acting"]
POLICY = """
import torch
from torch import nn
from engram import LSTMWrapper
import beside

class Mine(LSTMWrapper):
    def __init__(self, env, width=8, **kwargs):
        super().__init__(env, input_size=width, hidden_size=8, **kwargs)
        self.encoder = nn.Linear(self.env_spec.single_observation_space.shape[0], width)
        self.actor, self.critic = nn.Linear(8, self.action_space.logits), nn.Linear(8, 1)

    def encode_observations(self, observations):
        return self.encoder(observations)

    def decode_actions(self, hidden):
        return self.actor(hidden), self.critic(hidden)

class Wrong(Mine):
    def forward(self, td, state=None, action=None):
        td["dones"] = torch.zeros_like(td["dones"])
        return super().forward(td, state, action)

class Plain(nn.Module):
    def __init__(self, obs_dim, n_actions, hidden):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(obs_dim, hidden), nn.Linear(hidden, n_actions + 1)

    def forward(self, obs, state):
        h, c = self.cell(obs, state)
        return self.head(h)[:, :-1], self.head(h)[:, -1], (h, c)

class Talks(Mine):
    def decode_actions(self, hidden):
        print("deciding")
        return super().decode_actions(hidden)

class TiresSoon(Mine):
    def encode_observations(self, observations):
        self.calls = self.__dict__.get("calls", 0) + 1
        if self.calls > 3:
            raise RuntimeError("too tired")
        return super().encode_observations(observations)

class OddlyMade(Plain):
    def __init__(self, input_size, num_actions, hidden_size, device, layers=1):
        super().__init__(input_size, num_actions, hidden_size)

class Unmade(Plain):
    def __init__(self, env):
        self.wanted = env.something_else

class ReturnsNothing(nn.Module):
    def __init__(self, env):
        super().__init__()
        self.cell = nn.LSTMCell(6, 8)

    def forward(self, obs, state):
        return None

def make(env):
    return Plain(env.single_observation_space.shape[0], env.single_action_space.n, 8)

ready = Plain(6, 4, 8)
NUMBER = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(POLICY)
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "script.py").write_text("import sys; sys.exit('give a file')")
    (tmp_path / "untidy.py").write_text("class Mine(")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def audit(*words: str) -> int:
    return main(["audit", *words])


def test_a_policy_by_name_holds(capsys) -> None:
    assert audit("fast", "env=recall", *QUICK) == 0
    said = capsys.readouterr().out
    assert said.startswith("fast: Fast on recall")
    assert "All 2 checks hold" in said


def test_the_default_environment_shows_tokens() -> None:
    (target,) = targets("fast", [])
    assert target.spec.name == "tmaze"
    assert target.spec.observation_kind == "tokens"


@pytest.mark.parametrize("name", ["Mine", "Plain", "make", "ready", "OddlyMade"])
def test_classes_functions_and_policies_in_a_file(folder: Path, name: str, capsys) -> None:
    options = ["py_agent.hidden=8"] if name == "Plain" else []
    assert audit(f"mine.py:{name}", "env=recall", *options, *QUICK) == 0
    assert f"mine.py:{name}" in capsys.readouterr().out


def test_classes_in_a_package(folder: Path) -> None:
    assert audit("mine:Mine", "env=recall", *QUICK) == 0


def test_options_reach_the_policy(folder: Path) -> None:
    (target,) = targets("mine.py:Mine", ["env=recall", "py_agent.width=5"])
    assert target.make().encoder.out_features == 5


def test_a_failing_check_is_exit_code_1_and_json_tells_it(folder: Path, capsys) -> None:
    assert audit("mine.py:Wrong", "env=recall", "--json", *QUICK) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["target"] == "mine.py:Wrong"
    (failure,) = [check for check in told["checks"] if check["status"] == "fail"]
    assert failure["name"] == "boundary_acting"
    assert "dones: memory is not cleared at all" in failure["finding"]
    assert failure["where"].startswith("Wrong.forward (mine.py:")


def test_what_a_policy_prints_is_no_part_of_the_report(folder: Path, capsys) -> None:
    assert audit("mine.py:Talks", "env=recall", "--json", *QUICK) == 0
    assert json.loads(capsys.readouterr().out)["passed"] is True


def test_a_policy_that_raises_in_the_middle_fails_and_says_where(folder: Path, capsys) -> None:
    assert audit("mine.py:TiresSoon", "env=recall", *QUICK) == 1
    assert "too tired in encode_observations (mine.py:" in " ".join(capsys.readouterr().out.split())


def test_the_page_is_written(folder: Path, capsys) -> None:
    assert audit("mine.py:Mine", "env=recall", "--html", "report.html", "--only=replay", "--quick") == 0
    assert "<svg" in Path("report.html").read_text()
    assert audit("mine.py:Mine", "env=recall", "--html", "no/such/place.html", *QUICK) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name a target"),
        (["fsat"], "there is no policy, file or run 'fsat'; did you mean fast?"),
        (["fast", "slow"], "one target at a time"),
        (["fast", "--jsno"], "no option --jsno; did you mean --json?"),
        (["fast", "--only"], "argument --only: expected one argument"),
        (["fast", "--seed", "x"], "argument --seed: invalid int value: 'x'"),
        (["fast", "env=recall", "--only", "repaly"], "no check 'repaly'; did you mean replay?"),
        (["fast", "env=nowhere"], "env: no choice 'nowhere'"),
        (["nothing.yaml"], "there is no file nothing.yaml"),
        (["mine.py:Mien", "env=recall"], "mine.py has no Mien; did you mean Mine"),
        (["mine.py:NUMBER", "env=recall"], "mine.py:NUMBER is of type int: name a torch.nn.Module, or a function"),
        (["mine.py:Plain", "env=recall"], "mine.py:Plain needs hidden, which has no known value"),
        (["mine.py:Plain", "env=recall", "py_agent.hidden=8", "--adapter", "sb4"], "adapter: unknown 'sb4'"),
        (["mine.py"], "'mine.py' names no class: write mine.py:CLASS, where CLASS is Mine or Wrong or Plain or "),
        (["other.py"], "'other.py' names no class: write other.py:CLASS\n"),
        (["other.py:Mine"], "there is no file other.py"),
        (["mine.py:Unmade", "env=recall"], "cannot be built: AttributeError"),
        (["mine.py:ReturnsNothing", "env=recall"], "must return (logits, value, state), and returned a NoneType"),
        (["script.py:Mine"], "script.py could not be loaded: SystemExit: give a file"),
        (["untidy.py:Mine"], "untidy.py could not be loaded: SyntaxError"),
        (["no.such.module:Mine"], "no.such.module could not be imported"),
    ],
)
def test_what_cannot_be_audited_is_exit_code_2_and_says_why(folder: Path, words, said: str, capsys) -> None:
    assert audit(*words) == 2
    assert said in capsys.readouterr().err


def test_yaml_by_name_and_by_file(folder: Path, capsys) -> None:
    content = (Path(load.__code__.co_filename).parent / "agent" / "fast.yaml").read_text()
    Path("own.yaml").write_text(content)
    assert audit("own.yaml", "env=recall", *QUICK) == 0
    assert audit("agent=fast", "env=recall", *QUICK) == 0
    assert audit("reference", "env=recall", *QUICK) == 0
    assert capsys.readouterr().out.count("ComponentPolicy on recall") == 3


@pytest.mark.parametrize("seed", [0, 2])
def test_empty_inputs_at_the_kink_of_a_relu_are_no_wrong_gradient(seed: int) -> None:
    assert audit("agent=reference", "env=tmaze", "--quick", "--only", "gradient_exact", "--seed", str(seed)) == 0


def test_a_run_and_a_checkpoint_are_audited_with_their_weights(folder: Path, capsys) -> None:
    sizes = {"num_envs": 6, "bptt_horizon": 8, "batch_size": 96, "minibatch_size": 96, "num_workers": 0}
    settings = [f"trainer.{name}={size}" for name, size in {**sizes, "total_timesteps": 192}.items()]
    assert main(["train", "env=recall", "py_agent.hidden_size=8", "run=first", *settings]) == 0
    capsys.readouterr()
    checkpoint = max(Path("runs/first/checkpoints").glob("epoch_*"))
    for place in ("runs/first", "first", str(checkpoint)):
        assert audit(place, *QUICK) == 0
        assert f"{place}: Fast on recall" in capsys.readouterr().out
    (target,) = targets("runs/first", [])
    fresh, trained = target.make(clip_range=0.0), target.make()
    assert not (trained.critic.hidden.weight == fresh.critic.hidden.weight).all()
    assert audit("runs/first", "env=tmaze", *QUICK) == 2
    assert "is audited as it was trained" in capsys.readouterr().err


def test_all_means_all_in_python_and_in_yaml_and_three_cores() -> None:
    names = [name for name, *_ in ALL]
    assert len(names) == 14
    assert {"fast", "example", "agent=latent_attn_med", "agent=reference", "fast, gru", "fast, mingru"} <= set(names)


def test_a_command_line_is_read_in_any_order() -> None:
    asked = parse(["--seed=3", "env=recall", "--only", "replay,modes", "fast", "--json"])
    assert asked.target == "fast"
    assert asked.settings == ["env=recall"]
    assert asked.only == ["replay", "modes"]
    assert (asked.seed, asked.json, asked.html) == (3, True, None)
    with pytest.raises(UserError, match="name a target"):
        parse(["--json"])
