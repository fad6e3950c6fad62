"""Engram as a contestant: `engram train` as it is, measured from outside. Run as `python -m engram.bench.ours`."""

import contextlib
import json
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from engram.bench.runners.meter import Meter
from engram.config.load import load
from engram.config.run_directory import prepare_directory

FOREVER = 10**15
PHASES = ("environment", "inference", "learning")


def command(words: Sequence[str], threads: int) -> list[str]:
    """The command line that trains with these settings under the protocol."""
    return [sys.executable, "-m", "engram.bench.ours", json.dumps({"words": list(words), "threads": threads})]


class Display:
    """Instead of a terminal, somebody who measures: an iteration ends when an epoch's record is shown."""

    def __init__(self, meter: Meter) -> None:
        self._meter, self._steps = meter, 0

    def start(self, plan: Any) -> None: ...

    def update(self, record: dict[str, Any]) -> None:
        for phase in PHASES:
            self._meter.add(phase, record.get(f"time/{phase}_seconds", 0.0))
        self._meter.note("megabytes", record["process/megabytes"])
        self._meter.note("seconds", (record["steps"] - self._steps) / record["time/steps_per_second"])
        done, self._steps = record["steps"] - self._steps, record["steps"]
        self._meter.iteration(done, record["return"])

    def message(self, text: str) -> None:
        print(text, file=sys.stderr)

    def finish(self, result: Any) -> None: ...


def main() -> None:
    asked = json.loads(sys.argv[1])
    meter = Meter()
    with tempfile.TemporaryDirectory(prefix="engram-bench-") as directory:
        # The run is as long as it is measured.
        longest = f"trainer.total_timesteps={FOREVER}"
        settings = load([longest, *asked["words"], f"runs_dir={directory}", "run=bench", "device=cpu"])
        prepare_directory(settings)
        import torch

        start = import_module("engram.training.run").start
        torch.set_num_threads(asked["threads"])
        with contextlib.redirect_stdout(sys.stderr):
            start(settings, Display(meter))


if __name__ == "__main__":
    main()
