"""`engram eval`."""

import io
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from support import running

from engram.api.evaluate import play
from engram.cli.eval import show, verdict
from engram.cli.main import main
from engram.config.evaluation import EvalSettings, load_request
from engram.config.load import load
from engram.config.run_directory import prepare_directory
from engram.training import evaluate


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A run with checkpoints, one without any, and one without memory."""
    directory = tmp_path_factory.mktemp("runs")
    running.run(directory, name="recall_1")
    running.run(directory, "trainer.memory=off", name="forgetful", epochs=1)
    prepare_directory(load(["run=empty", f"runs_dir={directory}"]))
    return directory


def answer(capsys, *words: str) -> dict:
    assert main(["eval", *words, "episodes=9", "--json"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    return json.loads(output.out)


def test_json_is_one_object_with_the_return_and_the_settings(runs, capsys):
    found = answer(capsys, "run=recall_1", f"runs_dir={runs}", "seed=5")
    assert set(found["return"]) == {"mean", "low", "high", "std"}
    assert found["return"]["low"] <= found["return"]["mean"] <= found["return"]["high"]
    assert found["stats"]["correct"] == found["return"] == found["agents"][0]["return"]
    assert found["length"]["mean"] == 4
    assert (found["episodes"], found["seed"], found["greedy"], found["epoch"]) == (9, 5, False, 3)
    assert (found["run"], found["env"], found["memoryless_ceiling"]) == ("recall_1", "recall", 0.25)


def test_only_the_runs_directory_is_needed(runs, capsys, tmp_path, monkeypatch):
    expected = answer(capsys, f"run={runs / 'recall_1'}")
    moved = shutil.copytree(runs / "recall_1", tmp_path / "moved")
    shutil.rmtree(moved / "checkpoints", ignore_errors=True)
    shutil.copytree(runs / "recall_1" / "checkpoints" / "epoch_000003", moved / "checkpoints" / "epoch_000003")
    monkeypatch.chdir(tmp_path)
    assert answer(capsys, "run=moved") | {"checkpoint": None} == expected | {"checkpoint": None}


def test_any_checkpoint_can_be_played(runs, capsys):
    where = (f"run={runs / 'recall_1'}",)
    assert answer(capsys, *where, "checkpoint=best")["checkpoint"].endswith("recall_1/checkpoints/best")
    assert answer(capsys, *where, f"checkpoint={runs}/recall_1/checkpoints/epoch_000002")["epoch"] == 2


def test_another_environment_can_be_played(runs, capsys):
    assert answer(capsys, f"run={runs / 'recall_1'}", "env.delay=7")["length"]["mean"] == 9


def test_a_run_without_memory_is_played_without_memory(runs, capsys, monkeypatch):
    seen = []
    make = evaluate.Player
    monkeypatch.setattr(evaluate, "Player", lambda *arguments: seen.append(make(*arguments)) or seen[-1])
    assert answer(capsys, f"run={runs / 'forgetful'}")["memory"] == "off"
    assert answer(capsys, f"run={runs / 'recall_1'}")["memory"] == "carry"
    assert [player.memory_off for player in seen] == [True, False]


def test_the_default_output_is_a_table(runs, capsys):
    assert main(["eval", f"run={runs / 'recall_1'}", "episodes=9", "greedy=true"]) == 0
    output = capsys.readouterr().out
    assert "95% interval" in output
    assert "without memory" in output
    assert all(name in output for name in ("return", "length", "correct", "most likely actions"))


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["run=recal_1"], "run: no run 'recal_1' in {}; did you mean recall_1?"),
        (["run=recall_1", "--jso"], "engram eval: no option --jso; did you mean --json?"),
        (["run=recall_1", "--greedy"], "--greedy: settings have no dashes: write greedy=VALUE"),
        (["run=empty"], "checkpoint: {}/empty has no readable checkpoint: use another run, or train this one first"),
        (["run=empty", "checkpoint=best"], "checkpoint: {}/empty has no best checkpoint yet"),
        (["run=recall_1", "checkpoint=x"], "checkpoint: no such directory: x. Give a run"),
        (["run=recall_1", "env.cues=7"], "agent: a policy made for recall cannot act in recall: the policy reads"),
        (["run=recall_1", "env=tmaze"], "agent: a policy made for recall cannot act in tmaze: the policy reads"),
    ],
)
def test_a_mistake_is_a_one_line_message(runs, capsys, words, output):
    assert main(["eval", f"runs_dir={runs}", *words]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(output.format(runs))
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""


def test_a_damaged_checkpoint_is_replaced_by_the_one_before(runs, tmp_path):
    run = shutil.copytree(runs / "recall_1", tmp_path / "run")
    (run / "checkpoints" / "epoch_000003" / "state.json").write_text("{}")
    assert play(load_request([f"run={run}", "episodes=2"], EvalSettings)).about["epoch"] == 2


def test_output_of_libraries_and_workers_stays_out_of_the_json(capfd, monkeypatch, runs):
    def noisy(request):
        print("hello from a library")
        os.system("echo hello from a worker")
        return SimpleNamespace(about={"return": 1})

    monkeypatch.setattr("engram.api.evaluate.play", noisy)
    assert main(["eval", f"run={runs / 'recall_1'}", "--json"]) == 0
    output = capfd.readouterr()
    assert json.loads(output.out) == {"return": 1}
    assert output.err.count("hello") == 2


def estimate(mean: float, reach: float | None = 0.1) -> dict[str, float | None]:
    ends = (None, None) if reach is None else (mean - reach, mean + reach)
    return {"mean": mean, "low": ends[0], "high": ends[1], "std": reach}


def result(**changes: Any) -> dict[str, Any]:
    plain = {"run": "mine", "env": "maze", "episodes": 50, "greedy": False, "memory": "carry", "steps": 1234567}
    plain |= {"checkpoint": "runs/mine/checkpoints/best", "masked_features": []}
    figures = {"return": estimate(0.9), "length": estimate(12.0), "stats": {"goals": estimate(2.0, None)}}
    agents = [{"agent": 0, "return": estimate(0.9), "length": estimate(12.0)}]
    return {**plain, **figures, "agents": agents, "memoryless_ceiling": 0.45, "mean_return_goal": 1.0, **changes}


def shown(**changes: Any) -> str:
    stream = io.StringIO()
    show(result(**changes), Console(file=stream, width=120))
    return stream.getvalue()


def cells_of(output: str, name: str) -> list[str]:
    line = next(line for line in output.splitlines() if line.startswith(f"{name} "))
    return line.removeprefix(name).split()


def test_means_are_in_a_table_with_their_intervals():
    output = shown()
    assert "mine on maze, 50 episodes, sampled actions, after 1,234,567 steps (runs/mine/checkpoints/best)" in output
    assert cells_of(output, "return") == ["0.900", "0.800", "to", "1.00", "0.100"]
    assert cells_of(output, "goals") == ["2.00", "-", "-"]
    assert "agent" not in output


def test_several_agents_have_a_row_each():
    agents = [{"agent": i, "return": estimate(float(i)) if i else None, "length": None} for i in range(3)]
    output = shown(agents=agents, greedy=True, memory="off")
    assert cells_of(output, "return of agent 2")[0] == "2.00"
    assert cells_of(output, "return of agent 0") == ["-", "-", "-"]
    assert "most likely actions, without memory" in output


def test_masked_features_are_named():
    assert "Masked features, unknown to the policy: ore, heart." in shown(masked_features=["ore", "heart"])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "Return 0.90: above what any policy without memory can reach (0.45). The best possible is 1.00."),
        ({"return": estimate(0.5)}, "Return 0.50: above what a policy without memory can reach (0.45), but that may"),
        ({"return": estimate(0.9, None)}, "but that may be luck."),
        ({"return": estimate(1.0, 0.0), "episodes": 3}, "but that may be luck."),
        ({"return": estimate(0.4)}, "Return 0.40: not above what a policy without memory can reach (0.45)."),
        ({"memoryless_ceiling": None, "mean_return_goal": None}, "Return 0.90."),
    ],
)
def test_the_verdict_claims_no_more_than_the_interval_shows(changes, expected):
    assert expected in verdict(result(**changes))
