"""`engram memory`."""

import json
from pathlib import Path

import pytest
from support import running

from engram.cli.main import main


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("runs")
    running.run(directory, name="recall_1", epochs=1)
    running.run(directory, "trainer.memory=off", name="forgetful", epochs=1)
    return directory


def test_page_and_json_are_in_the_runs_directory(runs, capsys):
    assert main(["memory", "run=recall_1", f"runs_dir={runs}", "episodes=12"]) == 0
    printed = capsys.readouterr().out
    written = json.loads((runs / "recall_1" / "memory.json").read_text())
    assert (runs / "recall_1" / "memory.html").exists()
    assert written["verdict"] == printed.splitlines()[: len(written["verdict"])]
    assert set(written["returns"]) == {"normal", "erased", "frozen", "swapped"}
    assert (written["episodes"], written["bptt"]) == (12, 8)


def test_json_is_printed_as_one_object(runs, tmp_path, capsys):
    out = tmp_path / "new" / "page.html"
    assert main(["memory", f"run={runs / 'recall_1'}", "episodes=8", "--json", "--out", str(out)]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(out.with_suffix(".json").read_text())


def test_a_run_without_memory_is_refused(runs, capsys):
    assert main(["memory", "run=forgetful", f"runs_dir={runs}"]) == 2
    assert "trainer.memory=off, so it has no memory to examine" in capsys.readouterr().err
