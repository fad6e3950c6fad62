"""Environments stepped with random actions: by the layer, and by bare loops with nothing around the simulators.

Run as `python -m engram.bench.bare` it is one of them, and is measured from outside.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
from pydantic import TypeAdapter

from engram.bench.runners.meter import Meter
from engram.env.mettagrid.simulators import Simulations
from engram.env.mettagrid.worlds import world
from engram.env.settings import EnvSettings, Gym, MettagridWorld
from engram.env.vector import VectorEnv

Step = Callable[[], float]
TABLE = 64  # rows of random actions, drawn beforehand


@contextmanager
def layer(settings: Any, num_envs: int, num_workers: int) -> Iterator[Step]:
    with VectorEnv(settings, num_envs, num_workers) as env:
        space = env.spec.single_action_space
        assert isinstance(space, gymnasium.spaces.Discrete)
        actions = {rows.start: _table(int(space.n), rows.stop - rows.start) for rows in env.batches}
        env.reset()
        count = 0

        def step() -> float:
            nonlocal count
            count += 1
            batch = env.recv()
            env.send(batch, actions[batch.rows.start][count % TABLE])
            if count % 1000 == 0:
                env.drain_episodes()
            return batch.rows.stop - batch.rows.start

        yield step


@contextmanager
def open_bare(settings: Any, num_envs: int) -> Iterator[Step]:
    with _gymnasium(settings, num_envs) if isinstance(settings, Gym) else _mettagrid(settings, num_envs) as step:
        yield step


@contextmanager
def _mettagrid(settings: MettagridWorld, num_envs: int) -> Iterator[Step]:
    """The simulators one after the other, with a new one where an episode ends: by a flag, or by a stat of the game."""
    config = world(settings)
    simulations, agents, tokens = Simulations(config), config.game.num_agents, config.game.obs.num_tokens
    rows = num_envs * agents
    observations = np.zeros((rows, tokens, 3), np.uint8)
    terminals, truncations = np.zeros((2, rows), np.bool_)
    rewards, (actions, vibes) = np.zeros(rows, np.float32), np.zeros((2, rows), np.int32)
    table = _table(len(config.game.actions.actions()), rows)
    fields = (observations, terminals, truncations, rewards, actions, vibes)
    views = [tuple(field[i * agents : (i + 1) * agents] for field in fields) for i in range(num_envs)]
    count = 0

    def begin(env: int) -> Any:
        simulation = simulations.begin(count * num_envs + env)
        simulation.set_buffers(*views[env])
        return simulation

    running = [begin(env) for env in range(num_envs)]
    limits = list(config.game.end_episode_on_game_stats.items())

    def step() -> float:
        nonlocal count
        count += 1
        actions[:] = table[count % TABLE]
        for simulation in running:
            simulation.step()
        for name, least in limits:
            for env, simulation in enumerate(running):
                value = simulation.get_game_stat(name)
                if value is not None and value >= least:
                    terminals[env * agents : (env + 1) * agents] = True
        if truncations.any() or terminals.any():
            for env in np.flatnonzero((truncations | terminals)[::agents]).tolist():
                running[env] = begin(env)
        return rows

    yield step


@contextmanager
def _gymnasium(settings: Gym, num_envs: int) -> Iterator[Step]:
    envs = gymnasium.make_vec(settings.id, num_envs, vectorization_mode="sync")
    table = _table(envs.single_action_space.n, num_envs)
    envs.reset(seed=0)
    count = 0

    def step() -> float:
        nonlocal count
        count += 1
        envs.step(table[count % TABLE])
        return num_envs

    yield step
    envs.close()


def _table(choices: int, rows: int) -> np.ndarray:
    return np.random.default_rng(0).integers(choices, size=(TABLE, rows))


def main() -> None:
    asked, meter = json.loads(sys.argv[1]), Meter()
    settings: Any = TypeAdapter(EnvSettings).validate_python(asked["settings"])
    workers = asked.get("workers")
    with open_bare(settings, asked["envs"]) if workers is None else layer(settings, asked["envs"], workers) as step:
        while True:
            meter.iteration(int(step()))


if __name__ == "__main__":
    main()
