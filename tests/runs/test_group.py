"""Groups of runs: settings with several values, and training, listing and comparing real runs."""

import json

import pytest

from engram.cli.main import main
from engram.runs.group import expand, split_values
from engram.runs.pool import RunPool
from engram.settings import SettingsError, UserError

SMALL = [
    "env=recall",
    "env.delay=2",
    "py_agent.hidden_size=8",
    "trainer.num_envs=6",
    "trainer.bptt_horizon=8",
    "trainer.batch_size=96",
    "trainer.minibatch_size=48",
    "trainer.total_timesteps=192",
    "trainer.checkpoint.interval=1",
]


def test_a_group_whose_first_process_cannot_start_is_one_message(monkeypatch):
    def ended(_process: object) -> None:
        raise EOFError("unexpected EOF")

    monkeypatch.setattr("multiprocessing.context.ForkServerProcess.start", ended)
    with RunPool(print, 1) as pool, pytest.raises(UserError, match=r"forks the runs ended"):
        pool.start("x", [])


@pytest.mark.slow
def test_a_group_is_trained_listed_compared_and_not_trained_again(tmp_path, capfd):
    words = ["train", *SMALL, "seed=1,2", "run=g", f"runs_dir={tmp_path}"]
    assert main(words) == 0
    said = capfd.readouterr().out
    assert "g_seed-1: finished" in said
    assert "95% interval" in said

    assert main(words) == 0
    assert "2 of 2 runs are finished already" in capfd.readouterr().out

    assert main(["runs", f"runs_dir={tmp_path}", "--json"]) == 0
    runs = {run["name"]: run for run in json.loads(capfd.readouterr().out)}
    assert {name: run["state"] for name, run in runs.items()} == {"g_seed-1": "finished", "g_seed-2": "finished"}
    assert runs["g_seed-2"]["differs"] == {"seed": 2}
    assert runs["g_seed-2"]["steps"] == 192

    assert main(["compare", "g_seed-1", "g_seed-2", f"runs_dir={tmp_path}", "episodes=12", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert set(found["runs"]) == {"g_seed-1", "g_seed-2"}
    assert 0 < found["pairs"][0]["p"] <= 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare", "a"], "two runs or more"),
        (["compare", "a", "b", "runs_dir=none"], "there are no runs"),
        (["runs", "runs_dir=none"], "there are no runs"),
        (["runs", "--jsno"], "did you mean --json"),
        (["sweep"], "give one file"),
        (["sweep", "a.yaml", "seed=1"], "into the file"),
        (["train", "seed=1,x"], "seed"),
    ],
)
def test_a_mistake_is_one_message(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("1", ["1"]),
        ("1,2,3", ["1", "2", "3"]),
        ("1, 2", ["1", "2"]),
        ("1,1", ["1"]),
        ("[1,2]", ["[1,2]"]),
        ("[1,2],[3]", ["[1,2]", "[3]"]),
        ("'a,b'", ["'a,b'"]),
        ("{a:1,b:2}", ["{a:1,b:2}"]),
        (r"a\,b", [r"a\,b"]),
        ("1,", ["1", ""]),
    ],
)
def test_values_are_split_at_commas_outside_of_brackets_and_quotes(text, parts):
    assert split_values(text) == parts


def test_one_value_of_each_setting_is_no_group():
    assert expand(["env=recall", "seed=1"]) is None


def test_there_is_a_run_for_each_combination():
    members = expand(["env=recall", "seed=1,2", "trainer.optimizer.learning_rate=0.001,0.01", "run=x"])
    assert [member.settings.run for member in members] == [
        "x_seed-1_learning_rate-0.001",
        "x_seed-1_learning_rate-0.01",
        "x_seed-2_learning_rate-0.001",
        "x_seed-2_learning_rate-0.01",
    ]
    assert [member.settings.seed for member in members] == [1, 1, 2, 2]
    assert members[3].settings.trainer.optimizer.learning_rate == 0.01
    assert members[3].values == {"seed": "2", "trainer.optimizer.learning_rate": "0.01"}


def test_choices_of_a_group_can_differ_too():
    members = expand(["env=recall,tmaze", "seed=1"])
    assert [member.settings.run for member in members] == ["fast_recall_env-recall", "fast_tmaze_env-tmaze"]


def test_names_that_would_be_equal_are_numbered():
    members = expand(["env=recall", "init_from=a/b,a:b", "run=x"])
    assert [member.settings.run for member in members] == ["x_init_from-a-b", "x_init_from-a-b_2"]


def test_mistakes_of_all_runs_are_reported_at_once():
    with pytest.raises(SettingsError) as error:
        expand(["env=recall", "seed=1,x", "trainer.ppo.gamma=0.9,2"])
    assert len(error.value.lines) == 2


@pytest.mark.parametrize(("words", "message"), [(["seed=1,"], "empty value"), (["run=a,b"], "one name")])
def test_a_mistake_in_the_values_is_one_message(words, message):
    with pytest.raises(UserError, match=message):
        expand(words)
