"""Groups of runs, their list and their comparison, with real runs."""

import json

import pytest

from engram.cli.main import main

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
