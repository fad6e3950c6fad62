"""The memory bugs of the story: each does what its name says, and training meets it."""

import json

import pytest
import torch
from support.running import metrics, run

from bench import story
from bench.faults import FAULTS
from engram.agent.recurrent.lstm import LSTM
from engram.bench.learning.suite import Processes
from engram.bench.process import ProgramError
from engram.config.load import SETTINGS_FILE, dump, load

T, B = 6, 4


def outputs(fault: str, steps: slice = slice(None)):
    """Of a faulty core and of the right one with the same weights, from the same memory."""
    torch.manual_seed(1)
    right = LSTM(3, 5)
    faulty = FAULTS[fault].core_class(3, 5)
    faulty.load_state_dict(right.state_dict())
    inputs, memory = torch.randn(T, B, 3)[steps], torch.randn(B, *right.memory_shape)
    starts = torch.zeros(T, B, dtype=torch.bool)
    starts[0, 1] = starts[3, 2] = True
    return [core(inputs, memory, starts[steps])[0] for core in (faulty, right)]


@pytest.mark.parametrize(
    ("fault", "acting", "learning"),
    [  # the rows that differ
        ("right", [], []),
        ("never reset", [1], [1, 2]),
        ("reset only at segment starts", [], [2]),
        ("wrong rows", [0, 2, 3], []),
        ("zero start state", [], [0, 2, 3]),
        ("undetached", [], []),
    ],
)
def test_a_fault_changes_only_what_its_name_says(fault, acting, learning) -> None:
    for steps, expected in ((slice(0, 1), acting), (slice(None), learning)):
        mine, right = outputs(fault, steps)
        differing = [row for row in range(B) if not torch.equal(mine[:, row], right[:, row])]
        assert differing == expected


def test_undetached_memory_fails_at_the_second_minibatch(tmp_path) -> None:
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        run(tmp_path, "py_agent=bench.faults:Undetached", *story.UNSTOPPED)


@pytest.mark.parametrize(("fault", "noticed"), [("right", False), ("never reset", False), ("zero start state", True)])
def test_the_replay_check_notices_what_acting_and_learning_do_differently(fault, noticed, tmp_path) -> None:
    words = [f"py_agent=bench.faults:{FAULTS[fault].__name__}", *story.UNSTOPPED, "env.delay=5"]
    run(tmp_path, "env=recall", *words, epochs=2)
    assert any(record["memory/replay_error"] > 1e-5 for record in metrics(tmp_path)) == noticed


def test_the_story_tells_scores_errors_and_failures(tmp_path, monkeypatch, capsys) -> None:
    def fake(self, words, log, capture=False):
        settings = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        if words[0] == "eval":
            return json.dumps({"return": {"mean": 0.5}})
        if "Undetached" in settings["py_agent"]:
            raise ProgramError("RuntimeError: a second time")
        made = load([word for word in words[1:] if not word.startswith("run")])
        made = made.model_copy(update={"run": settings["run"], "runs_dir": settings["runs_dir"]})
        made.directory.mkdir(parents=True)
        (made.directory / SETTINGS_FILE).write_text(dump(made))
        error = 0.0 if "Right" in settings["py_agent"] else 0.3
        record = {"steps": 2000, "time/seconds": 1.0, "memory/replay_error": error}
        (made.directory / "metrics.jsonl").write_text(json.dumps(record) + "\n")
        return ""

    monkeypatch.setattr(Processes, "run", fake)
    words = ["--tasks", "recall/delay10", "--seeds", "2", "--jobs", "1", "--no-audit", "--out", str(tmp_path)]
    assert story.main(words) == 0
    found = {outcome["fault"]: outcome for outcome in json.loads((tmp_path / "story.json").read_text())["outcomes"]}
    assert found.keys() == FAULTS.keys()
    assert (found["right"]["stopped_after"], found["wrong rows"]["stopped_after"]) == (None, 2000)
    assert found["undetached"]["failed"] == "RuntimeError: a second time (after 0 steps)"
    assert found["undetached"]["seeds"] == 0
    assert "silent" in capsys.readouterr().out
