"""`engram train` as a program that is measured from outside: `python -m engram.bench.train_program`."""

import contextlib
import json
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from engram.bench.meter import Meter
from engram.config.load import load
from engram.config.run_directory import prepare_directory

UNLIMITED = 10**15
PHASES = ("environment", "inference", "learning")


def command(overrides: Sequence[str], threads: int) -> list[str]:
    """The command line that trains with these settings and answers the commands of `meter.py`."""
    options = json.dumps({"overrides": list(overrides), "threads": threads})
    return [sys.executable, "-m", "engram.bench.train_program", options]


class MeterDisplay:
    """Takes the place of the terminal: an iteration ends when an epoch is displayed."""

    def __init__(self, meter: Meter) -> None:
        self._meter, self._steps = meter, 0

    def start(self, plan: Any) -> None: ...

    def update(self, record: dict[str, Any]) -> None:
        for phase in PHASES:
            self._meter.add(phase, record.get(f"time/{phase}_seconds", 0.0))
        self._meter.note("megabytes", record["process/megabytes"])
        self._meter.note("seconds", (record["steps"] - self._steps) / record["time/steps_per_second"])
        steps, self._steps = record["steps"] - self._steps, record["steps"]
        self._meter.iteration(steps, record["return"])

    def message(self, text: str) -> None:
        print(text, file=sys.stderr)

    def finish(self, result: Any) -> None: ...


def main() -> None:
    options = json.loads(sys.argv[1])
    meter = Meter()
    with tempfile.TemporaryDirectory(prefix="engram-bench-") as directory:
        endless = f"trainer.total_timesteps={UNLIMITED}"
        settings: Any = load([endless, *options["overrides"], f"runs_dir={directory}", "run=bench", "device=cpu"])
        prepare_directory(settings)
        import torch

        from engram.training.run import start

        torch.set_num_threads(options["threads"])
        with contextlib.redirect_stdout(sys.stderr):
            start(settings, MeterDisplay(meter))


if __name__ == "__main__":
    main()
