"""A stand-in for training: writes metrics at once, so that sweeps can be tested in seconds."""

import json
import time
from pathlib import Path

RATE = "trainer.optimizer.learning_rate"


def train(words: list[str]) -> int:
    """The return is the learning rate. Rates below 0.005 train until they are stopped."""
    settings = dict(word.split("=", 1) for word in words)
    directory, rate = Path(settings["runs_dir"]) / settings["run"], float(settings[RATE])
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "metrics.jsonl").open("a") as metrics:
        for epoch in range(1, 4):
            metrics.write(json.dumps({"epoch": epoch, "steps": 100 * epoch, "return": rate}) + "\n")
    if rate < 0.005:
        time.sleep(60)
    return 0
