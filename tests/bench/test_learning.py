"""Runs collected into one result file."""

import json

from support.running import SMALL, Silent

from bench.learning import main
from engram.config.load import load
from engram.config.run_directory import prepare_directory
from engram.training.run import start


def test_runs_are_collected_into_one_file(tmp_path):
    for seed in (1, 2):
        words = [*SMALL, "env=recall", "env.delay=2", f"seed={seed}", f"run={seed}", f"runs_dir={tmp_path}"]
        settings = load([*words, "trainer.total_timesteps=960"])
        prepare_directory(settings)
        start(settings, Silent())
    path = tmp_path / "out" / "learning.json"
    assert main([str(tmp_path / "2"), str(tmp_path / "1"), "--out", str(path)]) == 0
    runs = json.loads(path.read_text())["runs"]
    assert [run["seed"] for run in runs] == [1, 2]
    metrics = [json.loads(line) for line in (tmp_path / "1" / "metrics.jsonl").read_text().splitlines()]
    curve = [[record["steps"], round(record["return"], 4)] for record in metrics if record["return"] is not None]
    assert runs[0]["curve"] == curve
    assert runs[0]["steps"] == 960
    assert runs[0]["largest_replay_error"] < 1e-5
    assert runs[0]["megabytes_per_million_steps"] is not None
