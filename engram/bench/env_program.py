"""Steps environments with random actions, measured from outside: `python -m engram.bench.env_program`.

Either through `VectorEnv`, or in a bare loop over the simulators.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
from pydantic import TypeAdapter

from engram.bench.meter import Meter
from engram.env.mettagrid.simulators import SimulatorFactory
from engram.env.mettagrid.worlds import world
from engram.env.settings import EnvSettings, Gym, MettagridWorld
from engram.env.vector import VectorEnv

StepRows = Callable[[], int]  # returns the number of rows stepped
TABLE = 64  # steps of random actions, sampled beforehand


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
            env.send(batch, actions[batch.rows.start][count % TABLE])
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
    """Steps one simulator after the other, and replaces those whose episode ended, by a flag or a game statistic."""
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
        actions[:] = table[count % TABLE]
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
        envs.step(table[count % TABLE])
        return num_envs

    yield step
    envs.close()


def _random_actions(actions: int, rows: int) -> np.ndarray:
    return np.random.default_rng(0).integers(actions, size=(TABLE, rows))


def main() -> None:
    options, meter = json.loads(sys.argv[1]), Meter()
    settings: Any = TypeAdapter(EnvSettings).validate_python(options["settings"])
    num_envs, workers = options["envs"], options.get("workers")
    with bare_loop(settings, num_envs) if workers is None else vector_env(settings, num_envs, workers) as step:
        while True:
            meter.iteration(step())


if __name__ == "__main__":
    main()
