"""What runs have learned: one file, one picture."""

import json
import xml.etree.ElementTree as ET

from support.running import SMALL, Silent

from engram.bench.curves import main
from engram.config.load import load
from engram.config.run_directory import prepare_directory
from engram.training.run import start


def test_runs_become_a_file_and_a_picture(tmp_path):
    for seed in (1, 2):
        words = [*SMALL, "env=recall", "env.delay=2", f"seed={seed}", f"run={seed}", f"runs_dir={tmp_path}"]
        settings = load([*words, "trainer.total_timesteps=960"])
        prepare_directory(settings)
        start(settings, Silent())
    picture, out = tmp_path / "curves.svg", tmp_path / "out"
    assert main([str(tmp_path / "2"), str(tmp_path / "1"), "--out", str(out), "--picture", str(picture)]) == 0
    (path,) = out.iterdir()
    runs = json.loads(path.read_text())["runs"]
    assert [run["seed"] for run in runs] == [1, 2]
    metrics = [json.loads(line) for line in (tmp_path / "1" / "metrics.jsonl").read_text().splitlines()]
    known = [[record["steps"], round(record["return"], 4)] for record in metrics if record["return"] is not None]
    assert runs[0]["curve"] == known
    assert runs[0]["steps"] == 960
    assert runs[0]["largest_replay_error"] < 1e-5
    assert runs[0]["megabytes_per_million_steps"] is not None
    lines = ET.parse(picture).getroot().iter("{http://www.w3.org/2000/svg}polyline")
    assert len(list(lines)) == 2

    before = path.read_text()
    assert main([str(tmp_path / "1"), "--out", str(out)]) == 0
    assert path.read_text() == before
    assert len(list(out.iterdir())) == 2
