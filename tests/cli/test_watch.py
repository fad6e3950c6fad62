"""`engram watch`."""

import pytest
from support import running

from engram.cli.main import main


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    running.run(directory, name="recall_1", epochs=2)
    return directory


def test_a_finished_run_is_shown_and_left(runs, capsys):
    assert main(["watch", "recall_1", f"runs_dir={runs}"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("epoch 2 steps 192/192")
    assert line.endswith(" done")


def test_an_unknown_run_is_one_message(runs, capsys):
    assert main(["watch", "recall_2", f"runs_dir={runs}"]) == 2
    assert capsys.readouterr().err == f"run: no run 'recall_2' in {runs}; did you mean recall_1?\n"


def test_watching_writes_nothing(runs):
    before = {path: path.stat().st_mtime_ns for path in (runs / "recall_1").rglob("*")}
    main(["watch", "recall_1", f"runs_dir={runs}"])
    assert {path: path.stat().st_mtime_ns for path in (runs / "recall_1").rglob("*")} == before
