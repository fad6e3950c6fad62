"""An hour of training with a worker killed each minute, beside undisturbed runs: `make bench ARGS="worker-kills"`.

For every seed, two runs learn recall in two workers with the same settings; environments sleep in every step, so that a
run takes the whole time but little of a core. In one of the two, `kill -9` hits a random worker at a random moment of
each minute. Compared are the returns of the last ten epochs and of an evaluation of the last checkpoint.
"""

import argparse
import json
import random
import shlex
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import psutil
from torch import Tensor

import engram
from engram.bench.result import describe_machine, write
from engram.cli.main import main as command
from engram.soak.report import memory_slope
from engram.soak.trial import Trial
from engram.training.experience import Experience

BATCH, UPDATES, ROWS, WORKERS = 512, 2, 16, 2  # steps and updates of an epoch
TASK = [
    "env=python",
    "env.name=bench.paced_recall:PacedRecall",
    f"trainer.num_workers={WORKERS}",
    f"trainer.num_envs={ROWS}",
    "trainer.bptt_horizon=16",
    f"trainer.batch_size={BATCH}",
    f"trainer.minibatch_size={BATCH // UPDATES}",
    "trainer.update_epochs=1",
    "trainer.optimizer.learning_rate=0.0005",  # so that the task is solved about half-way
    "device=cpu",
]
SLEPT = 0.55  # of the time, where other programs share the core; the rest computes and restarts workers
LAST = 10  # epochs


class CountedTrial(Trial):
    """Notes how many segments and steps each restart masks; no metric says so."""

    def _train(self) -> None:
        mask, path = Experience.mask_unfinished, self.directory / "masked.txt"

        def counted(self: Experience, interrupted: Tensor, env_id: slice) -> None:
            before = self.buffer["masked"].clone()
            mask(self, interrupted, env_id)
            new = self.buffer["masked"] & ~before
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{int(new.any(1).sum())} {int(new.sum())}\n")

        Experience.mask_unfinished = counted  # type: ignore[method-assign]
        super()._train()

    def masked(self) -> dict[str, int]:
        path = self.directory / "masked.txt"
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
        counts = [tuple(map(int, line.split())) for line in lines]
        return {"segments": sum(each[0] for each in counts), "steps": sum(each[1] for each in counts)}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog='make bench ARGS="worker-kills …"', description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=60.0, metavar="SECONDS", help="between kills (default: 60)")
    parser.add_argument("--steps", type=int, default=150_016)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--episodes", type=int, default=100, help="of the evaluation")
    parser.add_argument("--out", type=Path, default=Path("bench/results/worker-kills.json"))
    parser.add_argument("settings", nargs="*", metavar="SETTING=VALUE", help="more settings, for all runs")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="engram-kills-", ignore_cleanup_errors=True) as directory:
        runs = _runs(options, Path(directory))
    result = {
        "what": f"recall with a worker killed every {options.every:g} s, beside undisturbed runs",
        "command": shlex.join(["python", "-m", "bench", "worker-kills", *argv]),
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "settings": [*TASK, *options.settings],
        "runs": runs,
    }
    write(result, options.out)
    return int(any(run["exit_code"] or run["orphans"] for run in runs))


def _runs(options: argparse.Namespace, root: Path) -> list[dict[str, Any]]:
    """All runs at the same time: every seed with kills and without."""
    disturbed = {seed: _trial(root / f"disturbed_{seed}", options, seed) for seed in options.seeds}
    undisturbed = {seed: _trial(root / f"undisturbed_{seed}", options, seed) for seed in options.seeds}
    trials = [*disturbed.values(), *undisturbed.values()]
    try:
        for trial in trials:
            trial.start()
        kills = _kill_workers(disturbed, options.every)
        for trial in trials:
            trial.wait()
    finally:
        for trial in trials:
            trial.kill()
    found = [_judged(trial, options, seed, kills[seed]) for seed, trial in disturbed.items()]
    return found + [_judged(trial, options, seed, 0) for seed, trial in undisturbed.items()]


def _kill_workers(trials: Mapping[int, CountedTrial], every: float) -> dict[int, int]:
    """How many workers of each run were killed until all runs had ended."""
    rng, kills = random.Random(f"kills {list(trials)}"), dict.fromkeys(trials, 0)
    began, minute = time.monotonic(), 0
    while any(trial.code is None for trial in trials.values()):
        for part, seed in sorted((rng.uniform(0, 0.95), seed) for seed in trials):
            time.sleep(max(0.0, began + (minute + part) * every - time.monotonic()))
            kills[seed] += _kill_worker(trials[seed], rng)
        minute += 1
        time.sleep(max(0.0, began + minute * every - time.monotonic()))
        epochs = [len(trial.epochs()) for trial in trials.values()]
        print(f"interval {minute}: epochs {epochs}, killed {list(kills.values())}", flush=True)
    return kills


def _trial(directory: Path, options: argparse.Namespace, seed: int) -> CountedTrial:
    pause = 60 * options.minutes * SLEPT / options.steps * WORKERS
    restarts = round(2 * 600 / options.every)  # twice as many as are expected within ten minutes
    overrides = [f"seed={seed}", f"trainer.total_timesteps={options.steps}", f"env.kwargs.pause={pause:.6f}"]
    overrides += [f"trainer.worker_restarts={restarts}", *options.settings]
    return CountedTrial(directory, [*TASK, *overrides], command)


def _kill_worker(trial: Trial, rng: random.Random) -> bool:
    """Whether there was one to kill: before the first epoch and at the end there is none."""
    workers = trial.workers() if trial.code is None and trial.has_trained() else []
    if not workers:
        return False
    with suppress(psutil.NoSuchProcess):
        rng.choice(workers).send_signal(signal.SIGKILL)
        return True
    return False


def _judged(trial: CountedTrial, options: argparse.Namespace, seed: int, kills: int) -> dict[str, Any]:
    orphans, epochs = trial.end_orphans(), trial.epochs()
    returns = [each["return"] for each in epochs]
    last = returns[-LAST:]
    slope = memory_slope([each["process/megabytes"] for each in epochs], UPDATES)
    run = {
        "seed": seed,
        "kills": kills,
        "restarts": int(epochs[-1]["env/worker_restarts"]),
        "masked": trial.masked(),
        "exit_code": trial.code,
        "minutes": round(epochs[-1]["time/seconds"] / 60, 2),
        "steps": epochs[-1]["steps"],
        "steps_to_0.9": next((each["steps"] for each in epochs if (each["return"] or 0) >= 0.9), None),
        "return_last_epochs": {"mean": fmean(last), "sd": stdev(last), "epochs": LAST},
        "evaluation": engram.evaluate(trial.run, options.episodes, trust=True).to_json()["return"],
        "memory": asdict(slope) if slope else None,
        "orphans": orphans,
        "returns": returns,
    }
    print(json.dumps({key: value for key, value in run.items() if key != "returns"}), flush=True)
    return run
