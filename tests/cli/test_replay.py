"""`engram replay`."""

import json
import zlib
from pathlib import Path

import pytest
from support import running

from engram.cli.main import main


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("runs")
    running.run(directory, name="recall_1", epochs=1)
    running.run(directory, "env=tmaze", name="maze", epochs=1)
    return directory


def test_the_page_is_in_the_runs_directory_unless_another_file_is_named(runs, tmp_path, capsys):
    assert main(["replay", "run=recall_1", f"runs_dir={runs}", "episodes=2"]) == 0
    assert "8 steps in 2 episodes" in capsys.readouterr().out
    first = (runs / "recall_1" / "replay.html").read_text()
    assert main(["replay", f"run={runs / 'recall_1'}", "episodes=2", "--out", str(tmp_path / "new" / "page.html")]) == 0
    assert (tmp_path / "new" / "page.html").read_text() == first


def test_the_seed_selects_the_episode(runs, tmp_path):
    def page(seed: int) -> str:
        out = tmp_path / f"{seed}.html"
        assert main(["replay", f"run={runs / 'recall_1'}", f"seed={seed}", "--out", str(out)]) == 0
        return out.read_text()

    assert page(1) != page(2)


def test_a_gif_and_a_mettagrid_replay_of_the_same_episode(runs, tmp_path):
    gif, replay, page = (tmp_path / name for name in ("a.gif", "a.json.z", "a.html"))
    words = ["--video", str(gif), "--mettagrid", str(replay), "--out", str(page)]
    assert main(["replay", f"run={runs / 'maze'}", "episodes=1", "seed=3", *words]) == 0
    assert gif.read_bytes()[:4] == b"GIF8"
    written = json.loads(zlib.decompress(replay.read_bytes()))
    facts = json.loads(
        page.read_text().partition('<script id="data" type="application/json">')[2].partition("</script>")[0]
    )
    assert written["max_steps"] == facts["count"]
    assert written["action_names"] == facts["names"]


def test_an_mp4_is_written(runs, tmp_path):
    video = tmp_path / "a.mp4"
    assert main(["replay", f"run={runs / 'recall_1'}", "--video", str(video), "--out", str(tmp_path / "a.html")]) == 0
    assert video.read_bytes()[4:8] == b"ftyp"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--video", "a.avi"], "--video: a.avi has no known format: name it .gif or .mp4"),
        (["--out", "."], "--out: . is a directory: name a file"),
        (["--out", "/proc/none/x.html"], "--out: /proc/none/x.html cannot be written"),
        (["--video", "/proc/none/x.gif"], "--video: /proc/none/x.gif cannot be written"),
        (["another"], "recall_1 and another are given: name one run"),
        (["episode=3"], "episode: no such option; did you mean episodes?"),
        (["episodes=0"], "episodes: '0' is too small"),
        (["--mettagrid", "x.json.z"], "env.kind=recall is not a mettagrid world"),
    ],
)
def test_mistakes_are_explained(runs, capsys, words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["replay", f"run={runs / 'recall_1'}", *words]) == 2
    assert message in capsys.readouterr().err
