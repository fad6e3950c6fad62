"""Mistakes through the Python interface: each is one message, the same as on the command line."""

import pytest
from api.echo import Echo
from api.tiny import SMALL, Small
from api.wrong import (
    BadSpace,
    Graphs,
    NeedsSize,
    NoReset,
    NoSpaces,
    OldReset,
    ResetWithoutInfo,
    ShowsNothing,
    SpaceClass,
    StepsInFour,
    WrongShape,
    growing,
)
from torch import nn

import engram
from engram.cli.main import main

# arguments of engram.train -> words of `engram train`
SAME = [
    ({"env": "tmze"}, ["env=tmze"]),
    ({"env": "CartPole"}, ["env=CartPole"]),
    ({"env": "CartPoel-v1"}, ["env=CartPoel-v1"]),
    ({"env": "mine.py"}, ["env=mine.py"]),
    ({"env": "gone.py:Mine"}, ["env=gone.py:Mine"]),
    ({"env": "gone.yaml"}, ["env=gone.yaml"]),
    ({"env": "no.such.module:Mine"}, ["env=no.such.module:Mine"]),
    ({"env": "collections:OrderedDict"}, ["env=collections:OrderedDict"]),
    ({"policy": "fats"}, ["py_agent=fats"]),
    ({"policy": "gone.yaml"}, ["agent=gone.yaml"]),
    ({"policy": "gone.py:Mine"}, ["py_agent=gone.py:Mine"]),
    ({"policy": "fast", "agent": "fast"}, None),
    ({"total_timesteps": 0}, ["trainer.total_timesteps=0"]),
    ({"total_timesteps": -5}, ["trainer.total_timesteps=-5"]),
    ({"total_timesteps": 1.5}, ["trainer.total_timesteps=1.5"]),
    ({"total_timesteps": "many"}, ["trainer.total_timesteps=many"]),
    ({"total_timesteps": True}, ["trainer.total_timesteps=true"]),
    ({"total_timesteps": [1, 2]}, ["trainer.total_timesteps=[1, 2]"]),
    ({"total_timesteps": float("nan")}, ["trainer.total_timesteps=nan"]),
    ({"total_timesteps": 10**30}, ["trainer.total_timesteps=1000000000000000000000000000000"]),
    ({"run": "a/b"}, ["run=a/b"]),
    ({"run": ""}, ["run="]),
    ({"env": ""}, ["env="]),
    ({"policy": ""}, ["py_agent="]),
    ({"agent": ""}, ["agent="]),
    ({"trainer": ""}, ["trainer="]),
    ({"trainer": None}, ["trainer=null"]),
    ({"py_agent": None}, ["py_agent=null"]),
    ({"device": ""}, ["device="]),
    ({"env": "CartPole-v1", "env.id": ""}, ["env=CartPole-v1", "env.id="]),
    ({"sed": 3}, ["sed=3"]),
    ({"seed": -1}, ["seed=-1"]),
    ({"device": "gpu"}, ["device=gpu"]),
    ({"lr": 0.1}, ["lr=0.1"]),
    ({"learning_rate": 0.1}, ["learning_rate=0.1"]),
    ({"trainer": {"learning_rte": 0.1}}, ["trainer.learning_rte=0.1"]),
    ({"trainer": {"ppo": {"gama": 0.9}}}, ["trainer.ppo={gama:0.9}"]),
    ({"trainer": {"ppo": {"gamma": 2}}}, ["trainer.ppo.gamma=2"]),
    ({"trainer.memory": "on"}, ["trainer.memory=on"]),
    ({"trainer": {"batch_size": 1000}}, ["trainer.batch_size=1000"]),
    ({"trainer": "fast"}, ["trainer=fast"]),
    ({"env": "recall", "env.delay": "long"}, ["env=recall", "env.delay=long"]),
    ({"env": "recall", "env.corridor": 3}, ["env=recall", "env.corridor=3"]),
    ({"env": "recall", "wandb": "of"}, ["env=recall", "wandb=of"]),
    ({"env": "recall", "hooks": "gone.py:f"}, ["env=recall", "hooks=gone.py:f"]),
    ({"env": "recall", "py_agent": {"hidden_size": 0}}, ["env=recall", "py_agent.hidden_size=0"]),
    ({"env": "recall", "init_from": "runs/gone"}, None),
    ({"env": "recall", "hooks": "f"}, ["env=recall", "hooks=f"]),
    ({"env": "recall", "trainer..x": 1}, ["env=recall", "trainer..x=1"]),
    ({"env": "recall", "py_agent.previous": ["reward", "reword"]}, ["env=recall", "py_agent.previous=[reward,reword]"]),
    ({"env": "recall", "task": "recall/delay10"}, ["env=recall", "task=recall/delay10"]),
    ({"env": "recall", "trainer.kickstart": {}}, ["env=recall", "trainer.kickstart={}"]),
    ({"env": "CartPole-v1", "env.wrappers": [5]}, ["env=CartPole-v1", "env.wrappers=[5]"]),
    ({"env": "CartPole-v1", "env.kwargs": {"nope": 1}}, ["env=CartPole-v1", "env.kwargs.nope=1"]),
    ({"env": "mettagrid", "env.path": "gone.yaml"}, ["env=mettagrid", "env.path=gone.yaml"]),
]


@pytest.mark.parametrize(("arguments", "words"), SAME, ids=[str(arguments) for arguments, _ in SAME])
def test_a_mistake_has_the_message_of_the_command_line(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(engram.UserError) as caught:
        engram.train(**arguments)
    if words is not None:
        assert main(["train", *words]) == 2
        assert capsys.readouterr().err == f"{caught.value}\n"
    assert not (tmp_path / "runs").exists() or arguments.get("init_from")


class PlainModule(nn.Module):
    pass


def hook(record):
    """Lacks the run."""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env": 5}, "env: 5 is of type int: give the name of an environment, a class, or a function that makes one"),
        ({"env": Echo()}, r"env: .* is of type Echo: give .* \(env=Echo, or env=lambda: Echo\(...\)\)"),
        ({"env": dict}, r"env: dict made \{\}, expected a gymnasium.Env or a pettingzoo.ParallelEnv"),
        ({"env": lambda: None}, "env: <lambda> made None, expected a gymnasium.Env"),
        ({"env": NeedsSize}, r"env.kwargs: .*missing 1 required positional argument: 'size'"),
        ({"env": Echo, "env.kwargs": {"dely": 3}}, r"env.kwargs: .*unexpected keyword argument 'dely'"),
        ({"env": BadSpace}, "actions are Dict.*, expected Discrete, MultiDiscrete, MultiBinary or Box"),
        ({"env": Graphs}, "Graph"),
        ({"env": NoSpaces}, "NoSpaces: observation_space is None, expected an instance of a gymnasium space"),
        ({"env": SpaceClass}, "SpaceClass: observation_space is <class .*, expected an instance"),
        ({"env": OldReset}, "OldReset cannot be used: reset must take a seed and options"),
        ({"env": WrongShape, "trainer.num_workers": 0}, r"shape \(3,\), expected \(2,\)"),
        ({"env": NoReset, "trainer.num_workers": 0}, "NoReset: reset must return an observation and an info, got None"),
        ({"env": ResetWithoutInfo}, "ResetWithoutInfo: reset must return an observation and an info, got "),
        (
            {"env": ShowsNothing},
            r"ShowsNothing: environment 0, at step 2 .*: the observation\['grid'\] is missing: got None",
        ),
        ({"env": StepsInFour}, r"StepsInFour: step must return observation, .*, got \(\{'grid'"),
        ({"env": growing}, "env: growing made environments with different spaces, .* and .*: make the same"),
        ({"env": lambda: Echo}, r"env: <lambda> made <class .*>, expected .*: call it, Echo\(\)"),
        (
            {"env": Small, "policy": Echo},
            r"env: .*Small'> is a policy: .* comes first, engram.train\(env, policy\)",
        ),
        ({"policy": 5}, "py_agent: 5 is of type int: give the name of a policy, its class, or a YAML file"),
        ({"env": "recall", "policy": PlainModule}, "PlainModule in .* must be a subclass of engram.LSTMWrapper"),
        (
            {"env": "recall", "policy": PlainModule()},
            "py_agent: PlainModule.* is of type PlainModule: .*policy=PlainModule",
        ),
        ({"env": "recall", "on_epoch": 5}, "hooks: 5 is not a function"),
        ({"env": "recall", "on_epoch": hook}, r"hooks: hook is called as hook\(run, record\): too many"),
        ({"env": "recall", "seed": object()}, "seed: <object .*> is of type object: expected a number, text"),
        ({"env": "recall", "total_timesteps": 5, "trainer": {"total_timesteps": 6}}, "given twice"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_object_is_described(arguments, message, tmp_path):
    with pytest.raises(engram.UserError, match=message):
        engram.train(**arguments, runs_dir=tmp_path, progress=False)


class WrongLayer(Small):
    def __init__(self, env, **kwargs):
        super().__init__(env, **kwargs)
        self.encoder = nn.Linear(7, 8)


class Mistyped(Small):
    def decode_actions(self, hidden):
        return self.acter(hidden), self.critic(hidden)


class Frozen(Small):
    def __init__(self, env, **kwargs):
        super().__init__(env, **kwargs)
        self.requires_grad_(False)


class NoBase(Small):
    def __init__(self, env, **kwargs):
        pass


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (NoBase, r"NoBase: __init__ must call super\(\).__init__\(env, \*\*kwargs\) first"),
        (
            WrongLayer,
            r"WrongLayer failed \(observations: \['bit'\] \[N\] int32, \['clock'\] \[N, 1\] float32\): RuntimeError: "
            r"mat1 .*\n  .*tiny.py:\d+ in encode_observations: return self",
        ),
        (Mistyped, r"Mistyped failed: AttributeError: .* no attribute 'acter'\n  .*test_mistakes.py:\d+ in decode"),
        (Frozen, "Frozen: the loss has no gradient: its weights do not require gradients"),
    ],
)
def test_code_of_a_policy_that_fails_is_shown(policy, message, tmp_path):
    with pytest.raises(engram.UserError, match=f"^py_agent: .*{message}"):
        engram.train(Echo, policy, total_timesteps=64, runs_dir=tmp_path, **SMALL)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (5, "hooks: bad returned 5: expected None, or settings of the environment by name"),
        ({"dely": 3}, "env.dely: no such option; did you mean env.delay"),
        ({"delay": -1}, "env.delay: -1 is too small"),
        ({"cues": 9}, "env: spaces must stay the same during a run"),
    ],
)
def test_what_a_hook_returns_is_checked(returned, message, tmp_path):
    def bad(run, record):
        return returned

    with pytest.raises(engram.UserError, match=message):
        engram.train("recall", total_timesteps=128, runs_dir=tmp_path, on_epoch=bad, **SMALL)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ppo.gama", 0.9, "hooks: trainer.ppo.gama cannot be changed during a run; did you mean ppo.gamma"),
        ("ppo.gamma", 2, "hooks: trainer.ppo.gamma: 2 is too large: at most 1"),
        ("trainer.batch_size", 64, "hooks: trainer.batch_size cannot be changed during a run"),
    ],
)
def test_what_a_hook_sets_is_checked(name, value, message, tmp_path):
    with pytest.raises(engram.UserError, match=message):
        engram.train(
            "recall",
            total_timesteps=128,
            runs_dir=tmp_path,
            on_epoch=lambda run, record: run.set(name, value),
            **SMALL,
        )


def test_a_policy_that_does_not_fit_leaves_no_directory(tmp_path):
    with pytest.raises(engram.UserError, match=r"critic_only: .* has no part 'nothing'"):
        engram.train("recall", runs_dir=tmp_path, progress=False, **{"py_agent.critic_only": ["nothing"]})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("make", [engram.open, engram.load, engram.evaluate], ids=["open", "load", "evaluate"])
def test_an_empty_name_of_a_run_is_no_value(make):
    with pytest.raises(engram.UserError, match=r"^run: no value: write run=VALUE"):
        make("")


@pytest.mark.parametrize("env", [None, ""])
def test_no_environment_is_not_the_default_one(env):
    with pytest.raises(engram.UserError, match=r"^env: "):
        engram.make_env(env)


@pytest.mark.parametrize(
    ("checkpoint", "message"), [("bset", "did you mean best"), ("lastest", "did you mean latest"), ("", "give latest")]
)
def test_a_mistyped_checkpoint_is_told_the_nearest(checkpoint, message, run):
    with pytest.raises(engram.UserError, match=f"checkpoint: .*{message}"):
        run.load(checkpoint)


@pytest.mark.parametrize(
    ("path", "message"),
    [(5, "path: 5 is of type int: give the path"), ("/proc/none/x.html", "x.html cannot be written")],
)
def test_a_page_that_cannot_be_written_is_one_message(path, message, run):
    with pytest.raises(engram.UserError, match=message):
        run.report(path)


def test_a_number_of_environments_is_a_number():
    with pytest.raises(engram.UserError, match="num_envs: 'four' is not a whole number"):
        engram.make_env("recall", num_envs="four")


@pytest.mark.parametrize("use", [engram.open, engram.load, engram.evaluate])
def test_a_name_too_long_for_a_file_gets_the_message_of_an_unknown_run(use, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(engram.UserError, match="there are no runs in"):
        use("x" * 300)
