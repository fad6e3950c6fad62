"""`VectorEnv` without workers and with two, against bare loops over the simulators.

Two bare loops at once are the upper bound for two workers; on shared or uneven cores it is below 2. Every contestant
has its own processes, so that simulators of different contestants do not share the heap. The measured program is this
module too: `python -m engram.bench.env`.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import gymnasium
import numpy as np
from pydantic import TypeAdapter

from engram.bench.meter import Meter
from engram.bench.process import TURN_TIMEOUT, start_program
from engram.bench.race import Contestant, Measure, Options, Slice, run_race
from engram.bench.result import BenchResult, Threshold
from engram.env.settings import Arena, EnvSettings, Gym, MettagridWorld, Navigation, Recall, Small, TMaze
from engram.env.vector import VectorEnv

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
SAMPLED_STEPS = 64  # steps of random actions that are sampled beforehand and repeated


def measure(options: Options, progress: Callable[[str], None]) -> BenchResult:
    result = BenchResult("env", options.to_json())
    for task, (title, settings, sizes) in TASKS.items():
        if options.includes(task):
            for envs in sizes:
                _measure(result, title.format(envs), settings, envs, options, progress)
    return result


def _measure(
    result: BenchResult, name: str, settings: Any, envs: int, options: Options, progress: Callable[[str], None]
) -> None:
    has_simulator = not isinstance(settings, Recall)  # Recall is part of Engram
    baseline = BARE if has_simulator else NO_WORKERS
    contestants = _contestants(settings, envs, has_simulator)
    race = run_race(name, contestants, options.rounds, options.seconds, baseline=baseline, progress=progress)
    result.races.append(race)
    if not has_simulator:
        return
    limit = 1.0 if isinstance(settings, Gym) else 0.9
    result.thresholds.append(Threshold(f"{name}: 0 workers ÷ bare loop", race.ratio(NO_WORKERS, BARE), limit))
    if not isinstance(settings, Gym):  # a step of CartPole takes less time than a message to a worker
        result.thresholds += [
            Threshold(f"{name}: 2 workers ÷ bare loop", race.ratio(WORKERS, BARE), at_least=1.6),
            Threshold(f"{name}: 2 workers ÷ two bare loops", race.ratio(WORKERS, TWO_BARE), at_least=0.8),
        ]


def _contestants(settings: Any, envs: int, has_simulator: bool) -> Sequence[Contestant]:
    options = {"settings": settings.model_dump(mode="json"), "envs": envs}
    vector_envs = [
        Contestant(NO_WORKERS, lambda: _programs([options | {"workers": 0}])),
        Contestant(WORKERS, lambda: _programs([options | {"workers": 2}])),
    ]
    if not has_simulator:
        return vector_envs
    halves = [options | {"envs": envs // 2}] * 2
    bare_loops = [Contestant(BARE, lambda: _programs([options])), Contestant(TWO_BARE, lambda: _programs(halves))]
    return [*bare_loops, *vector_envs]


@contextmanager
def _programs(options_of_each: Sequence[dict[str, Any]]) -> Iterator[Measure]:
    """One process for each set of options, all running at the same time."""
    with ExitStack() as stack:
        commands = [[sys.executable, "-m", "engram.bench.env", json.dumps(options)] for options in options_of_each]
        processes = [stack.enter_context(start_program(command, {})) for command in commands]

        def measure_all(seconds: float) -> Slice:
            for process in processes:
                process.send({"measure": seconds})
            replies = [process.receive(seconds + TURN_TIMEOUT) for process in processes]
            rate = sum(reply["steps"] / reply["seconds"] for reply in replies)
            longest = max(reply["seconds"] for reply in replies)
            return Slice(rate * longest, longest)

        yield measure_all


StepRows = Callable[[], int]  # returns the number of rows stepped


@contextmanager
def vector_env(settings: Any, num_envs: int, num_workers: int) -> Iterator[StepRows]:
    with VectorEnv(settings, num_envs, num_workers) as env:
        space = env.spec.single_action_space
        assert isinstance(space, gymnasium.spaces.Discrete)
        actions = {rows.start: _random_actions(int(space.n), rows.stop - rows.start) for rows in env.batches}
        env.reset()
        count = 0

        def step() -> int:
            nonlocal count
            count += 1
            batch = env.recv()
            env.send(batch, actions[batch.rows.start][count % SAMPLED_STEPS])
            if count % 1000 == 0:
                env.drain_episodes()
            return batch.rows.stop - batch.rows.start

        yield step


@contextmanager
def bare_loop(settings: Any, num_envs: int) -> Iterator[StepRows]:
    make = _gymnasium if isinstance(settings, Gym) else _mettagrid
    with make(settings, num_envs) as step:
        yield step


@contextmanager
def _mettagrid(settings: MettagridWorld, num_envs: int) -> Iterator[StepRows]:
    """Steps one simulator after the other. Replaces those whose episode ended, by a flag or a limit of a statistic."""
    from engram.env.mettagrid.simulators import SimulatorFactory  # needs mettagrid, which is optional
    from engram.env.mettagrid.worlds import world

    config = world(settings)
    factory, agents, tokens = SimulatorFactory(config), config.game.num_agents, config.game.obs.num_tokens
    rows = num_envs * agents
    observations = np.zeros((rows, tokens, 3), np.uint8)
    terminals, truncations = np.zeros((2, rows), np.bool_)
    rewards, (actions, vibes) = np.zeros(rows, np.float32), np.zeros((2, rows), np.int32)
    table = _random_actions(len(config.game.actions.actions()), rows)
    fields = (observations, terminals, truncations, rewards, actions, vibes)
    views = [tuple(field[i * agents : (i + 1) * agents] for field in fields) for i in range(num_envs)]
    count = 0

    def begin(env: int) -> Any:
        simulation = factory.make(count * num_envs + env)
        simulation.set_buffers(*views[env])
        return simulation

    running = [begin(env) for env in range(num_envs)]
    limits = list(config.game.end_episode_on_game_stats.items())

    def step() -> int:
        nonlocal count
        count += 1
        actions[:] = table[count % SAMPLED_STEPS]
        for simulation in running:
            simulation.step()
        for name, limit in limits:
            for env, simulation in enumerate(running):
                value = simulation.get_game_stat(name)
                if value is not None and value >= limit:
                    terminals[env * agents : (env + 1) * agents] = True
        if truncations.any() or terminals.any():
            for env in np.flatnonzero((truncations | terminals)[::agents]).tolist():
                running[env] = begin(env)
        return rows

    yield step


@contextmanager
def _gymnasium(settings: Gym, num_envs: int) -> Iterator[StepRows]:
    envs = gymnasium.make_vec(settings.id, num_envs, vectorization_mode="sync")
    table = _random_actions(envs.single_action_space.n, num_envs)
    envs.reset(seed=0)
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        envs.step(table[count % SAMPLED_STEPS])
        return num_envs

    yield step
    envs.close()


def _random_actions(actions: int, rows: int) -> np.ndarray:
    return np.random.default_rng(0).integers(actions, size=(SAMPLED_STEPS, rows))


def main() -> None:
    options, meter = json.loads(sys.argv[1]), Meter()
    settings: Any = TypeAdapter(EnvSettings).validate_python(options["settings"])
    num_envs, workers = options["envs"], options.get("workers")
    with bare_loop(settings, num_envs) if workers is None else vector_env(settings, num_envs, workers) as step:
        while True:
            meter.iteration(step())


if __name__ == "__main__":
    main()
