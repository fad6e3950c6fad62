"""`engram bench`: every verb runs at tiny sizes and gives the same form of result; mistakes fail at once."""

import json
from contextlib import nullcontext
from unittest.mock import create_autospec

import pytest

from engram.bench import env, scale, train
from engram.bench.meter import Meter
from engram.cli import bench as command
from engram.cli.main import main

SMALL = ["--rounds", "1", "--seconds", "0", "--threads", "1"]
TINY_RUN = ["env=recall", "trainer.num_envs=4", "trainer.num_workers=0", "trainer.bptt_horizon=8"]
TINY_RUN += ["trainer.batch_size=32", "trainer.minibatch_size=32", "trainer.update_epochs=1"]
SHAPE = {"schema", "verb", "date", "machine", "options", "races", "fits", "thresholds"}


def bench(capsys, *words: str) -> dict:
    assert main(["bench", *words, "--json", "--no-write"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result.keys() == SHAPE
    assert all(entry["rate"] for race in result["races"] for entry in race["entries"])
    return result


@pytest.mark.parametrize("verb", [env, train], ids=lambda verb: verb.__name__)
def test_the_command_line_knows_the_tasks_of_the_benchmark(verb) -> None:
    assert command.TASKS[verb.__name__.rpartition(".")[2]] == tuple(verb.TASKS)


def test_core(capsys) -> None:
    result = bench(capsys, "core", *SMALL, "--rows", "4,8", "--steps", "3", "--hidden", "8")
    names = [race["name"] for race in result["races"]]
    assert ["B 4" in names[0], "B 8" in names[1], "one step" in names[2]] == [True] * 3
    assert {"nn.LSTM", "pure PyTorch"} <= {entry["name"] for entry in result["races"][0]["entries"]}
    assert len(result["thresholds"]) == 5


def test_env(capsys) -> None:
    result = bench(capsys, "env", "--rounds", "1", "--seconds", "0", "--tasks", "cartpole")
    names = [entry["name"] for entry in result["races"][0]["entries"]]
    assert names == ["bare loop", "two bare loops at once", "0 workers", "2 workers"]
    assert [limit["at_least"] for limit in result["thresholds"]] == [1.0]


def test_policy(capsys) -> None:
    result = bench(capsys, "policy", *SMALL, "--rows", "4", "--steps", "2", "--policies", "fast,latent_attn_tiny")
    assert [len(race["entries"]) for race in result["races"]] == [2, 2]


def test_train(capsys, monkeypatch) -> None:
    monkeypatch.setattr(train, "overrides_of", lambda task, workers: TINY_RUN)
    monkeypatch.setattr(train, "WORKERS", (0,))
    (race,) = bench(capsys, "train", *SMALL, "--tasks", "cartpole")["races"]
    (entry,) = race["entries"]
    assert entry["phases"].keys() == {"environment", "inference", "learning"}
    assert 0 < sum(entry["phases"].values()) <= 1


class FakeProgram:
    """A program of two epochs per turn, which need ever more memory."""

    epochs = 0

    def request(self, command: dict, timeout: float) -> dict:
        self.epochs += 2
        return {"notes": {"megabytes": [100.0 + self.epochs] * 2, "seconds": [0.1, 0.1]}}


def test_scale(capsys, monkeypatch) -> None:
    monkeypatch.setattr(scale, "start_program", lambda command, variables: nullcontext(FakeProgram()))
    monkeypatch.setattr(scale, "FACTORS", (1, 2))
    sizes = ["--rows", "4", "--steps", "2", "--hidden", "8", "--epochs", "10"]
    result = bench(capsys, "scale", *SMALL, *sizes)
    axes = {fit["axis"] for fit in result["fits"]}
    assert {"rows", "steps", "hidden size²", "epochs of a run"} <= axes
    assert all({"slope", "r2", "x", "y"} <= fit.keys() for fit in result["fits"])
    memory = next(fit for fit in result["fits"] if fit["what"] == "MB of the process")
    assert memory["slope"] == pytest.approx(1.0)


def test_a_measured_run_notes_the_memory_and_seconds_of_each_epoch() -> None:
    notes, meter = [], create_autospec(Meter, instance=True)
    meter.note.side_effect = lambda name, value: notes.append((name, value))
    record = {"steps": 32, "return": None, "process/megabytes": 200.0, "time/steps_per_second": 64.0}
    train.MeterDisplay(meter).update(record)
    assert notes == [("megabytes", 200.0), ("seconds", 0.5)]
    meter.iteration.assert_called_once_with(32, None, None)


def test_a_result_is_printed_and_written_to_the_given_file(capsys, tmp_path) -> None:
    path = tmp_path / "core.json"
    words = ["core", *SMALL, "--rows", "2", "--steps", "2", "--hidden", "4", "--out", str(path)]
    assert main(["bench", *words]) == 0
    assert str(path) in capsys.readouterr().out
    assert json.loads(path.read_text())["options"]["hidden"] == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cor"], "engram bench: unknown benchmark 'cor'; did you mean core?"),
        (["core", "--rows", "ten"], "--rows: 'ten' is not a whole number above 0"),
        (["core", "--seconds", "-1"], "--seconds: '-1' is not a number of 0 or more"),
        (["core", "--colour", "red"], "unrecognized arguments: --colour red"),
        (["peers"], 'races against other systems: make bench ARGS="peers" in a clone'),
        (["policy", "--policies", "fats"], "unknown name 'fats'; did you mean fast?"),
    ],
)
def test_a_mistake_fails_with_a_suggestion(words, message, capsys) -> None:
    assert main(["bench", *words]) == 2
    assert message in capsys.readouterr().err


def test_help_lists_the_verbs_and_their_options(capsys) -> None:
    assert main(["bench"]) == 0
    assert "scale" in capsys.readouterr().out
    assert main(["bench", "scale", "--help"]) == 0
    assert "--epochs" in capsys.readouterr().out
