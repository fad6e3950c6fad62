"""Training from end to end with `engram train`, split by phase, with different numbers of workers and threads."""

from collections.abc import Callable

from engram.bench.options import Options
from engram.bench.process import in_own_process
from engram.bench.race import Contestant, run_race
from engram.bench.result import BenchResult
from engram.bench.tasks import ARENA, CARTPOLE, WORKERS, overrides_of
from engram.bench.train_program import command

TASKS = {
    "arena": "arena, fast: 24 agents x 16, T 64, batch 24576, 1 epoch",
    "cartpole": "masked CartPole, LSTM 128: 64 x 64, 4 x 4 minibatches",
    "tmaze": "tmaze, fast: the settings of `make train`",
}


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
