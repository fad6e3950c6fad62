"""`engram bench`: every verb runs at tiny sizes and writes one shape of result; mistakes are answered at once."""

import json

import pytest

from engram.bench import env, peers, scale, train
from engram.cli import bench as command
from engram.cli.main import main

SMALL = ["--rounds", "1", "--seconds", "0", "--threads", "1"]
TINY_RUN = ["env=recall", "trainer.num_envs=4", "trainer.num_workers=0", "trainer.bptt_horizon=8"]
TINY_RUN += ["trainer.batch_size=32", "trainer.minibatch_size=32", "trainer.update_epochs=1"]
SHAPE = {"schema", "verb", "date", "machine", "options", "races", "fits", "bars"}


def bench(capsys, *words: str) -> dict:
    assert main(["bench", *words, "--json", "--no-write"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told.keys() == SHAPE
    assert all(entry["rate"] for race in told["races"] for entry in race["entries"])
    return told


@pytest.mark.parametrize("verb", [env, train, peers], ids=lambda verb: verb.__name__)
def test_the_tasks_that_can_be_asked_for_are_those_there_are(verb) -> None:
    assert command.TASKS[verb.__name__.rpartition(".")[2]] == tuple(verb.TASKS)


def test_core(capsys) -> None:
    told = bench(capsys, "core", *SMALL, "--rows", "4,8", "--steps", "3", "--hidden", "8")
    names = [race["name"] for race in told["races"]]
    assert ["B 4" in names[0], "B 8" in names[1], "one step" in names[2]] == [True] * 3
    assert {"nn.LSTM", "pure PyTorch"} <= {entry["name"] for entry in told["races"][0]["entries"]}
    assert len(told["bars"]) == 5


def test_env(capsys) -> None:
    told = bench(capsys, "env", "--rounds", "1", "--seconds", "0", "--tasks", "pole")
    names = [entry["name"] for entry in told["races"][0]["entries"]]
    assert names == ["bare loop", "two bare loops at once", "0 workers", "2 workers"]
    assert [bar["at_least"] for bar in told["bars"]] == [1.0]


def test_policy(capsys) -> None:
    told = bench(capsys, "policy", *SMALL, "--rows", "4", "--steps", "2", "--policies", "fast,latent_attn_tiny")
    assert [len(race["entries"]) for race in told["races"]] == [2, 2]


def test_train(capsys, monkeypatch) -> None:
    monkeypatch.setattr(train, "words_of", lambda task, workers: TINY_RUN)
    monkeypatch.setattr(train, "WORKERS", (0,))
    (race,) = bench(capsys, "train", *SMALL, "--tasks", "pole")["races"]
    (entry,) = race["entries"]
    assert entry["phases"].keys() == {"environment", "inference", "learning"}
    assert 0 < sum(entry["phases"].values()) <= 1


def test_scale(capsys, monkeypatch) -> None:
    monkeypatch.setattr(scale, "RUN", TINY_RUN)
    monkeypatch.setattr(scale, "FACTORS", (1, 2))
    sizes = ["--rows", "4", "--steps", "2", "--hidden", "8", "--epochs", "10"]
    told = bench(capsys, "scale", *SMALL, *sizes)
    axes = {fit["axis"] for fit in told["fits"]}
    assert {"rows", "steps", "hidden size²", "epochs of a run"} <= axes
    assert all({"slope", "r2", "x", "y"} <= fit.keys() for fit in told["fits"])


def test_a_result_is_shown_and_written_where_it_is_asked_for(capsys, tmp_path) -> None:
    words = ["core", *SMALL, "--rows", "2", "--steps", "2", "--hidden", "4", "--out", str(tmp_path)]
    assert main(["bench", *words]) == 0
    (path,) = tmp_path.iterdir()
    assert str(path) in capsys.readouterr().out
    assert json.loads(path.read_text())["options"]["hidden"] == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cor"], "engram bench: nothing is called 'cor'; did you mean core?"),
        (["core", "--rows", "ten"], "--rows: 'ten' is not a whole number above 0"),
        (["core", "--seconds", "-1"], "--seconds: '-1' is not a number of 0 or more"),
        (["core", "--colour", "red"], "unrecognized arguments: --colour red"),
        (["peers", "--peers", "rl_game"], "nothing is called 'rl_game'; did you mean rl_games?"),
        (["policy", "--policies", "fats"], "nothing is called 'fats'; did you mean fast?"),
    ],
)
def test_a_mistake_is_answered_with_what_was_meant(words, said, capsys) -> None:
    assert main(["bench", *words]) == 2
    assert said in capsys.readouterr().err


def test_help_tells_the_verbs_and_their_options(capsys) -> None:
    assert main(["bench"]) == 0
    assert "peers" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        main(["bench", "peers", "--help"])
    assert "--install" in capsys.readouterr().out
