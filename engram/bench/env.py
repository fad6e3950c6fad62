"""The environment layer against bare loops: without workers, and with two.

Two bare loops at once are the ceiling for two workers: where processors are shared or uneven, less than twice one.
Everybody has processes of his own: simulators that lie between those of another have more of memory to go through.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from engram.bench.options import Options
from engram.bench.process import TURN_TIMEOUT, opened
from engram.bench.race import Contestant, Measure, Slice, run_race
from engram.bench.result import Bar, Result
from engram.env.settings import Arena, Gym, Navigation, Recall, Small, TMaze

BARE, TWO_BARE, HERE, WORKERS = "bare loop", "two bare loops at once", "0 workers", "2 workers"
# With numbers of environments: a message between processes costs the same for few and for many.
TASKS: dict[str, tuple[str, Any, tuple[int, ...]]] = {
    "arena": ("mettagrid arena, 24 agents x {}", Arena(), (8, 16, 32)),
    "small": ("mettagrid small, 1 agent x {}", Small(), (64, 256, 512)),
    "tmaze": ("mettagrid T-maze, 1 agent x {}", TMaze(), (64, 512)),
    "navigation": ("mettagrid navigation, 4 agents x {}", Navigation(), (16, 64)),
    "pole": ("CartPole-v1 x {}, against SyncVectorEnv", Gym(id="CartPole-v1"), (64,)),
    "recall": ("recall x {}", Recall(distractors=0.1), (4096,)),
}


def measure(options: Options, progress: Callable[[str], None]) -> Result:
    result = Result("env", options.to_json())
    for task, (title, settings, sizes) in TASKS.items():
        for envs in sizes if options.wants(task) else ():
            _measure(result, title.format(envs), settings, envs, options, progress)
    return result


def _measure(
    result: Result, name: str, settings: Any, envs: int, options: Options, progress: Callable[[str], None]
) -> None:
    bare = not isinstance(settings, Recall)  # a task of ours: there is nothing below the layer
    baseline = BARE if bare else HERE
    contestants = _contestants(settings, envs, bare)
    race = run_race(name, contestants, options.rounds, options.seconds, baseline=baseline, progress=progress)
    result.races.append(race)
    if isinstance(settings, Gym):  # a step of so few takes less than messages do: workers are for slower ones
        result.bars.append(Bar(f"{name}: 0 workers ÷ bare loop", race.ratio(HERE, BARE), at_least=1.0))
    elif bare:
        result.bars += [
            Bar(f"{name}: 0 workers ÷ bare loop", race.ratio(HERE, BARE), at_least=0.9),
            Bar(f"{name}: 2 workers ÷ bare loop", race.ratio(WORKERS, BARE), at_least=1.6),
            Bar(f"{name}: 2 workers ÷ two bare loops", race.ratio(WORKERS, TWO_BARE), at_least=0.8),
        ]


def _contestants(settings: Any, envs: int, bare: bool) -> Sequence[Contestant]:
    asked = {"settings": settings.model_dump(mode="json"), "envs": envs}
    ours = [
        Contestant(HERE, lambda: _at_once([asked | {"workers": 0}])),
        Contestant(WORKERS, lambda: _at_once([asked | {"workers": 2}])),
    ]
    if not bare:
        return ours
    two = [asked | {"envs": envs // 2}] * 2
    return [Contestant(BARE, lambda: _at_once([asked])), Contestant(TWO_BARE, lambda: _at_once(two)), *ours]


@contextmanager
def _at_once(everything_asked: Sequence[dict[str, Any]]) -> Iterator[Measure]:
    """A process for each, all at the same time."""
    with ExitStack() as stack:
        commands = [[sys.executable, "-m", "engram.bench.bare", json.dumps(asked)] for asked in everything_asked]
        processes = [stack.enter_context(opened(command, {})) for command in commands]

        def measure_all(seconds: float) -> Slice:
            for process in processes:
                process.tell({"measure": seconds})
            answers = [process.answer(seconds + TURN_TIMEOUT) for process in processes]
            rate = sum(answer["steps"] / answer["seconds"] for answer in answers)
            longest = max(answer["seconds"] for answer in answers)
            return Slice(rate * longest, longest)

        yield measure_all
