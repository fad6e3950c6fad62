"""Measures the environment layer against bare loops, interleaved in one run: `python bench/env.py`.

Ratios hold where absolute figures drift with the machine's load. Every contestant gets a slice of time in each round; a
ratio is the median over rounds of its speed by the baseline's in the same round. Workers need processors of their own:
a figure with workers means little if other programs were busy, so that is measured and printed beside it.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import date
from pathlib import Path
from statistics import median
from typing import NamedTuple

import gymnasium
import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from engram.env.settings import Arena, Gym, MettagridWorld, Recall, Small
from engram.env.simulation import Simulations
from engram.env.vector import VectorEnv
from engram.env.worlds import world

RESULTS = Path(__file__).parent / "results"
Step = Callable[[], int]  # steps some rows once and says how many


@contextmanager
def layer(settings, num_envs: int, num_workers: int) -> Iterator[Step]:
    with VectorEnv(settings, num_envs, num_workers) as env:
        space = env.spec.single_action_space
        actions = {
            rows.start: np.random.default_rng(0).integers(space.n, size=(64, rows.stop - rows.start))
            for rows in env.batches
        }
        env.reset()
        count = 0

        def step() -> int:
            nonlocal count
            count += 1
            batch = env.recv()
            env.send(batch, actions[batch.rows.start][count % 64])
            if count % 1000 == 0:
                env.drain_episodes()
            return batch.rows.stop - batch.rows.start

        yield step


@contextmanager
def bare_mettagrid(settings: MettagridWorld, num_envs: int) -> Iterator[Step]:
    """The simulators one after the other, with a new one where an episode ends, and nothing else."""
    config = world(settings)
    simulations, agents, tokens = Simulations(config), config.game.num_agents, config.game.obs.num_tokens
    rows = num_envs * agents
    observations = np.zeros((rows, tokens, 3), np.uint8)
    terminals, truncations = np.zeros((2, rows), np.bool_)
    rewards, (actions, vibes) = np.zeros(rows, np.float32), np.zeros((2, rows), np.int32)
    table = np.random.default_rng(0).integers(len(config.game.actions.actions()), size=(64, rows))
    fields = (observations, terminals, truncations, rewards, actions, vibes)
    views = [tuple(field[i * agents : (i + 1) * agents] for field in fields) for i in range(num_envs)]
    count = 0

    def begin(env: int):
        simulation = simulations.begin(count * num_envs + env)
        simulation.set_buffers(*views[env])
        return simulation

    running = [begin(env) for env in range(num_envs)]

    def step() -> int:
        nonlocal count
        count += 1
        actions[:] = table[count % 64]
        for simulation in running:
            simulation.step()
        if truncations.any() or terminals.any():
            for env in np.flatnonzero((truncations | terminals)[::agents]).tolist():
                running[env] = begin(env)
        return rows

    yield step


@contextmanager
def sync_vector_env(id: str, num_envs: int) -> Iterator[Step]:
    envs = gymnasium.make_vec(id, num_envs, vectorization_mode="sync")
    table = np.random.default_rng(0).integers(envs.single_action_space.n, size=(64, num_envs))
    envs.reset(seed=0)
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        envs.step(table[count % 64])
        return num_envs

    yield step
    envs.close()


def races() -> dict[str, dict]:
    """Of each race the contestants by name, the baseline first."""
    arena, small, pole, recall = Arena(), Small(window=11), Gym(id="CartPole-v1"), Recall(distractors=0.1)
    return {
        "mettagrid arena, 24 agents x 8": {
            "bare loop": bare_mettagrid(arena, 8),
            "0 workers": layer(arena, 8, 0),
            "2 workers": layer(arena, 8, 2),
        },
        "mettagrid small, 1 agent x 64": {
            "bare loop": bare_mettagrid(small, 64),
            "0 workers": layer(small, 64, 0),
            "2 workers": layer(small, 64, 2),
        },
        "CartPole-v1 x 64": {
            "SyncVectorEnv": sync_vector_env("CartPole-v1", 64),
            "0 workers": layer(pole, 64, 0),
            "2 workers": layer(pole, 64, 2),
        },
        "recall x 4096": {"0 workers": layer(recall, 4096, 0), "2 workers": layer(recall, 4096, 2)},
    }


class Slice(NamedTuple):
    rows_per_second: float
    others: (
        float  # processors that other programs kept busy meanwhile: above about 0.1 the figures are not to be trusted
    )


def measure(step: Step, seconds: float) -> Slice:
    busy, own, rows, start = _busy(), _own(), 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        rows += step()
    return Slice(rows / elapsed, max(0.0, (_busy() - busy) - (_own() - own)) / elapsed)


def _busy() -> float:
    """Seconds of processor time that all programs have used, or that the host took away."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - times.iowait - times.guest - times.guest_nice


def _own() -> float:
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(times.user + times.system for times in (member.cpu_times() for member in family))


def run(contestants: dict, rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    with ExitStack() as stack:
        steps = {name: stack.enter_context(contestant) for name, contestant in contestants.items()}
        for step in steps.values():
            measure(step, seconds / 2)  # warm up
        slices = [{name: measure(step, seconds) for name, step in steps.items()} for _ in range(rounds)]
    baseline = next(iter(contestants))
    return {
        name: {
            "rows_per_second": median(turn[name].rows_per_second for turn in slices),
            "ratio": median(turn[name].rows_per_second / turn[baseline].rows_per_second for turn in slices),
            "others": median(turn[name].others for turn in slices),
        }
        for name in contestants
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="per contestant and round")
    options = parser.parse_args()
    table = Table("race", "contestant", "rows/s", "ratio", "CPUs used by others", title="environment layer")
    results = {}
    for name, contestants in races().items():
        results[name] = run(contestants, options.rounds, options.seconds)
        for contestant, figures in results[name].items():
            speed, ratio, others = figures["rows_per_second"], figures["ratio"], figures["others"]
            table.add_row(name, contestant, f"{speed:,.0f}", f"{ratio:.2f}", f"{others:.2f}")
        table.add_section()
    Console().print(table)
    machine = {"cpus": os.cpu_count(), "python": platform.python_version()}
    path = RESULTS / f"env-{date.today().isoformat()}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"machine": machine, "options": vars(options), "races": results}, indent=2) + "\n")
    print(f"written to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


if __name__ == "__main__":
    main()
