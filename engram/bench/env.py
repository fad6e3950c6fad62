"""`VectorEnv` without workers and with two, against bare loops over the simulators.

Two bare loops at once are the upper bound for two workers; on shared or uneven cores it is below 2. Every contestant
has its own processes, so that simulators of different contestants do not share the heap.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from engram.bench.options import Options
from engram.bench.process import TURN_TIMEOUT, start_program
from engram.bench.race import Contestant, Measure, Slice, run_race
from engram.bench.result import BenchResult, Threshold
from engram.env.settings import Arena, Gym, Navigation, Recall, Small, TMaze

BARE, TWO_BARE, NO_WORKERS, WORKERS = "bare loop", "two bare loops at once", "0 workers", "2 workers"
# Title, settings, numbers of environments. Messages cost the same for few and for many environments.
TASKS: dict[str, tuple[str, Any, tuple[int, ...]]] = {
    "arena": ("mettagrid arena, 24 agents x {}", Arena(), (8, 16, 32)),
    "small": ("mettagrid small, 1 agent x {}", Small(), (64, 256, 512)),
    "tmaze": ("mettagrid T-maze, 1 agent x {}", TMaze(), (64, 512)),
    "navigation": ("mettagrid navigation, 4 agents x {}", Navigation(), (16, 64)),
    "cartpole": ("CartPole-v1 x {}, against SyncVectorEnv", Gym(id="CartPole-v1"), (64,)),
    "recall": ("recall x {}", Recall(distractors=0.1), (4096,)),
}


def measure(options: Options, progress: Callable[[str], None]) -> BenchResult:
    result = BenchResult("env", options.to_json())
    for task, (title, settings, sizes) in TASKS.items():
        for envs in sizes if options.includes(task) else ():
            _measure(result, title.format(envs), settings, envs, options, progress)
    return result


def _measure(
    result: BenchResult, name: str, settings: Any, envs: int, options: Options, progress: Callable[[str], None]
) -> None:
    bare = not isinstance(settings, Recall)  # part of Engram: there is no simulator below
    baseline = BARE if bare else NO_WORKERS
    contestants = _contestants(settings, envs, bare)
    race = run_race(name, contestants, options.rounds, options.seconds, baseline=baseline, progress=progress)
    result.races.append(race)
    if not bare:
        return
    limit = 1.0 if isinstance(settings, Gym) else 0.9
    result.thresholds.append(Threshold(f"{name}: 0 workers ÷ bare loop", race.ratio(NO_WORKERS, BARE), limit))
    if not isinstance(settings, Gym):  # a step of CartPole takes less time than a message to a worker
        result.thresholds += [
            Threshold(f"{name}: 2 workers ÷ bare loop", race.ratio(WORKERS, BARE), at_least=1.6),
            Threshold(f"{name}: 2 workers ÷ two bare loops", race.ratio(WORKERS, TWO_BARE), at_least=0.8),
        ]


def _contestants(settings: Any, envs: int, bare: bool) -> Sequence[Contestant]:
    options = {"settings": settings.model_dump(mode="json"), "envs": envs}
    layer = [
        Contestant(NO_WORKERS, lambda: _programs([options | {"workers": 0}])),
        Contestant(WORKERS, lambda: _programs([options | {"workers": 2}])),
    ]
    if not bare:
        return layer
    halves = [options | {"envs": envs // 2}] * 2
    return [Contestant(BARE, lambda: _programs([options])), Contestant(TWO_BARE, lambda: _programs(halves)), *layer]


@contextmanager
def _programs(options_of_each: Sequence[dict[str, Any]]) -> Iterator[Measure]:
    """One process for each, running at the same time."""
    with ExitStack() as stack:
        commands = [
            [sys.executable, "-m", "engram.bench.env_program", json.dumps(options)] for options in options_of_each
        ]
        processes = [stack.enter_context(start_program(command, {})) for command in commands]

        def measure_all(seconds: float) -> Slice:
            for process in processes:
                process.send({"measure": seconds})
            replies = [process.receive(seconds + TURN_TIMEOUT) for process in processes]
            rate = sum(reply["steps"] / reply["seconds"] for reply in replies)
            longest = max(reply["seconds"] for reply in replies)
            return Slice(rate * longest, longest)

        yield measure_all
