"""Training from end to end with `engram train`, split by phase, with different numbers of workers and threads.

The races against other systems share these tasks. The measured program is this module too:
`python -m engram.bench.train`.
"""

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from engram.bench.meter import Meter
from engram.bench.process import in_own_process
from engram.bench.race import Contestant, Options, run_race
from engram.bench.result import BenchResult
from engram.config.load import load
from engram.config.run_directory import prepare_directory
from engram.env.settings import Arena

CARTPOLE: dict[str, Any] = {
    "name": "cartpole",
    "envs": 64,
    "horizon": 64,
    "minibatches": 4,
    "epochs": 4,
    "hidden": 128,
    "learning_rate": 0.001,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip": 0.2,
    "ent_coef": 0.01,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
    "seed": 1,
    "exact": True,  # the plain PyTorch loop of the races resets memory at episode starts; False: never
}
ARENA: dict[str, Any] = {
    **CARTPOLE,
    "name": "arena",
    "envs": 16,
    "minibatches": 6,  # of 4096 steps
    "epochs": 1,
    "learning_rate": 0.00046,
    "gamma": 0.977,
    "gae_lambda": 0.916,
    "clip": 0.1,
    "ent_coef": 0.0021,
    "vf_coef": 0.44,
    "exact": False,
}
WORKERS = {"0 workers": 0, "1 worker": 1, "2 workers": 2}
TASKS = {
    "arena": "arena, fast: 24 agents x 16, T 64, batch 24576, 1 epoch",
    "cartpole": "masked CartPole, LSTM 128: 64 x 64, 4 x 4 minibatches",
    "tmaze": "tmaze, fast: the settings of `make train`",
}
UNLIMITED = 10**15  # steps; the program ends when it is told to
PHASES = ("environment", "inference", "learning")


def measure(options: Options, progress: Callable[[str], None]) -> BenchResult:
    result = BenchResult("train", options.to_json())
    for task, name in TASKS.items():
        if options.includes(task):
            contestants = [_contestant(task, threads, workers) for threads in options.threads for workers in WORKERS]
            result.races.append(
                run_race(name, contestants, options.rounds, options.seconds, "steps", progress=progress)
            )
    return result


def arena_settings(task: dict[str, Any]) -> Arena:
    return Arena(other_resources=task.get("resources", []))


def overrides_of(task: dict[str, Any], workers: int) -> list[str]:
    """The task as settings of `engram train`."""
    batch = _batch_size(task)
    env = ["env=gym", "env.id=CartPole-v1", "env.wrappers=[mask_velocity]", "env.reward_scale=0.1"]
    network = ["py_agent=engram.bench.cartpole_policy:CartPolePolicy", f"py_agent.hidden_size={task['hidden']}"]
    resources = ",".join(arena_settings(task).other_resources)
    return [
        *(env if task["name"] == "cartpole" else ["env=arena", f"env.other_resources=[{resources}]"]),
        *(network if task["name"] == "cartpole" else ["py_agent=fast"]),
        f"seed={task['seed']}",
        f"trainer.num_envs={task['envs']}",
        f"trainer.num_workers={workers}",
        f"trainer.bptt_horizon={task['horizon']}",
        f"trainer.batch_size={batch}",
        f"trainer.minibatch_size={batch // task['minibatches']}",
        f"trainer.update_epochs={task['epochs']}",
        f"trainer.optimizer.learning_rate={task['learning_rate']}",
        f"trainer.optimizer.max_grad_norm={task['max_grad_norm']}",
        "trainer.optimizer.eps=0.00001",
        f"trainer.ppo.gamma={task['gamma']}",
        f"trainer.ppo.gae_lambda={task['gae_lambda']}",
        f"trainer.ppo.clip_coef={task['clip']}",
        "trainer.ppo.vf_clip_coef=null",
        f"trainer.ppo.ent_coef={task['ent_coef']}",
        f"trainer.ppo.vf_coef={task['vf_coef']}",
        "trainer.checkpoint.interval=1000000",  # no system writes checkpoints while it is measured
    ]


def steps_per_update(task: dict[str, Any]) -> float:
    """Environment steps per optimiser step."""
    return _batch_size(task) / (task["minibatches"] * task["epochs"])


def _contestant(task: str, threads: int, workers: str) -> Contestant:
    overrides = ["env=tmaze", f"trainer.num_workers={WORKERS[workers]}"]
    if task != "tmaze":
        overrides = overrides_of(ARENA if task == "arena" else CARTPOLE, WORKERS[workers])
    return Contestant("engram", in_own_process(command(overrides, threads), threads), threads, workers)


def _batch_size(task: dict[str, Any]) -> int:
    return task["envs"] * (1 if task["name"] == "cartpole" else Arena().agents) * task["horizon"]


def command(overrides: Sequence[str], threads: int, recent: int | None = None) -> list[str]:
    """The command line that trains with these settings and answers the commands of `meter.py`."""
    options = json.dumps({"overrides": list(overrides), "threads": threads, "recent": recent})
    return [sys.executable, "-m", "engram.bench.train", options]


class MeterDisplay:
    """A display for `start` that reports each epoch to the meter as one iteration."""

    def __init__(self, meter: Meter, recent: int | None = None) -> None:
        self._meter, self._steps = meter, 0
        self._recent = recent  # episodes that the recent return averages over; None: the return of the run's metrics
        self._episodes: list[float] = []

    def start(self, plan: Any) -> None: ...

    def update(self, record: dict[str, Any]) -> None:
        for phase in PHASES:
            self._meter.add(phase, record.get(f"time/{phase}_seconds", 0.0))
        self._meter.note("megabytes", record["process/megabytes"])
        self._meter.note("seconds", (record["steps"] - self._steps) / record["time/steps_per_second"])
        self._meter.exclude(record.get("time/evaluation_seconds", 0.0))
        steps, self._steps = record["steps"] - self._steps, record["steps"]
        recent_return = record["return"] if self._recent is None else self._recent_return(record)
        self._meter.iteration(steps, recent_return, record.get("evaluate/greedy_return"))

    def _recent_return(self, record: dict[str, Any]) -> float | None:
        """The mean over the last episodes, each counted with the mean of its epoch, which alone is recorded."""
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
