"""Training from end to end with `engram train`, split by phase, with different numbers of workers and threads.

The measured program is this module too: `python -m engram.bench.train`.
"""

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from engram.bench.meter import Meter
from engram.bench.options import Options
from engram.bench.process import in_own_process
from engram.bench.race import Contestant, run_race
from engram.bench.result import BenchResult
from engram.bench.tasks import ARENA, CARTPOLE, WORKERS, overrides_of
from engram.config.load import load
from engram.config.run_directory import prepare_directory

TASKS = {
    "arena": "arena, fast: 24 agents x 16, T 64, batch 24576, 1 epoch",
    "cartpole": "masked CartPole, LSTM 128: 64 x 64, 4 x 4 minibatches",
    "tmaze": "tmaze, fast: the settings of `make train`",
}
UNLIMITED = 10**15
PHASES = ("environment", "inference", "learning")


def measure(options: Options, progress: Callable[[str], None]) -> BenchResult:
    result = BenchResult("train", options.to_json())
    for task, name in TASKS.items():
        if options.includes(task):
            contestants = [_contestant(task, threads, note) for threads in options.threads for note in WORKERS]
            result.races.append(
                run_race(name, contestants, options.rounds, options.seconds, "steps", progress=progress)
            )
    return result


def _contestant(task: str, threads: int, note: str) -> Contestant:
    overrides = ["env=tmaze", f"trainer.num_workers={WORKERS[note]}"]
    if task != "tmaze":
        overrides = overrides_of(ARENA if task == "arena" else CARTPOLE, WORKERS[note])
    return Contestant("engram", in_own_process(command(overrides, threads), threads), threads, note)


def command(overrides: Sequence[str], threads: int, recent: int | None = None) -> list[str]:
    """The command line that trains with these settings and answers the commands of `meter.py`."""
    options = json.dumps({"overrides": list(overrides), "threads": threads, "recent": recent})
    return [sys.executable, "-m", "engram.bench.train", options]


class MeterDisplay:
    """Takes the place of the terminal: an iteration ends when an epoch is displayed."""

    def __init__(self, meter: Meter, recent: int | None = None) -> None:
        self._meter, self._steps = meter, 0
        self._recent = recent  # episodes of a recent return; None: as many as the run's own metrics
        self._episodes: list[float] = []

    def start(self, plan: Any) -> None: ...

    def update(self, record: dict[str, Any]) -> None:
        for phase in PHASES:
            self._meter.add(phase, record.get(f"time/{phase}_seconds", 0.0))
        self._meter.note("megabytes", record["process/megabytes"])
        self._meter.note("seconds", (record["steps"] - self._steps) / record["time/steps_per_second"])
        steps, self._steps = record["steps"] - self._steps, record["steps"]
        self._meter.iteration(steps, record["return"] if self._recent is None else self._recent_return(record))

    def _recent_return(self, record: dict[str, Any]) -> float | None:
        """The mean over the last episodes, of which only the mean of each iteration is known."""
        self._episodes += [record.get("episode/return", 0.0)] * record["episode/count"]
        del self._episodes[: -(self._recent or 1)]
        return sum(self._episodes) / len(self._episodes) if len(self._episodes) == self._recent else None

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
            start(settings, MeterDisplay(meter, options.get("recent")))
        meter.end()


if __name__ == "__main__":
    main()
