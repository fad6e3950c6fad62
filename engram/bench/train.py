"""Training from end to end, as `engram train` does it, split by phase; with and without workers, by threads."""

from collections.abc import Callable

from engram.bench.options import Options
from engram.bench.ours import command
from engram.bench.process import contestant
from engram.bench.race import Contestant, run_race
from engram.bench.result import Result
from engram.bench.tasks import ARENA, POLE, WORKERS, words_of

TASKS = {
    "arena": "arena, fast: 24 agents x 16, T 64, batch 24576, 1 epoch",
    "pole": "masked CartPole, LSTM 128: 64 x 64, 4 x 4 minibatches",
    "tmaze": "tmaze, fast: as `make train` has it",
}


def measure(options: Options, progress: Callable[[str], None]) -> Result:
    result = Result("train", options.to_json())
    for task, name in TASKS.items():
        if options.wants(task):
            everybody = [ours(task, threads, note) for threads in options.threads for note in WORKERS]
            race = run_race(name, everybody, options.rounds, options.seconds, "steps", progress=progress)
            result.races.append(race)
    return result


def ours(task: str, threads: int, note: str) -> Contestant:
    words = ["env=tmaze", f"trainer.num_workers={WORKERS[note]}"]
    if task != "tmaze":
        words = words_of(ARENA if task == "arena" else POLE, WORKERS[note])
    return Contestant("engram", contestant(command(words, threads), threads), threads, note)
