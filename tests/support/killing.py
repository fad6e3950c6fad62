"""Proves that a killed run resumes exactly: real runs, killed with signal 9 at random moments.

    export PYTHONPATH=.:tests OMP_NUM_THREADS=1
    .venv/bin/python tests/support/killing.py --kills 15 --writing 10 --phase 6 --out bench/results/resume.json

Every run is compared with one that nobody killed: every tensor of the last and of the best checkpoint to the bit
(weights, optimiser, memory, random states, environments), and every line of metrics.jsonl but for times. To be killed
in the middle of writing a checkpoint takes luck, so some kills wait for a write to be under way. Others happen in the
process itself, at a random line of start-up, evaluation, retention or the end of the run.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import torch
from support import running
from support.dying import PHASES, Moment, die_at

from engram.soak.trial import difference

ENVIRONMENTS = {
    "recall": ("env=recall", "env.delay=3", "env.delay_jitter=2", "env.truncate=0.05"),
    "recall in 2 workers": ("env=recall", "env.delay=3", "env.delay_jitter=2", "trainer.num_workers=2"),
    "cartpole, velocities masked": ("env=gym", "env.id=CartPole-v1", "env.wrappers=[mask_velocity]"),
    "mettagrid tmaze": ("env=tmaze", "env.max_steps=12"),
}


EVALUATED = ("trainer.evaluate_interval=3", "trainer.evaluate_episodes=4")
When = float | int | Moment  # after so many seconds, in the middle of the n-th write, or in a function


class Kill(NamedTuple):
    """One kill of a run: when, and what it left."""

    environment: str
    phase: str
    seconds: float  # since its process began
    epochs: int  # that it had written to metrics.jsonl
    checkpoint: int  # epoch of the one it went on from; 0: from the beginning
    writing: bool  # a checkpoint was being written


class Plan(NamedTuple):
    epochs: int
    random_kills: int
    writing_kills: int
    phase_kills: int  # in each phase


def prove(environment: str, plan: Plan, chance: random.Random, root: Path) -> Iterator[Kill]:
    """Kill runs so often, up to 6 times each; raises if one ends differently from an uninterrupted run."""
    words = (*ENVIRONMENTS[environment], *EVALUATED, f"trainer.total_timesteps={plan.epochs * running.BATCH}")
    whole = root / "whole"
    began = time.monotonic()
    wait_for(begin(whole, words))
    duration = time.monotonic() - began
    left = moments(plan, duration, chance)
    while left:
        now, left = left[:6], left[6:]
        pieces = root / f"pieces_{len(left)}"
        fresh = True
        while now:
            kill = _kill(environment, pieces, words, now[0])
            if kill is None:  # it was done before: the next run is killed earlier
                now[0] = _earlier(now[0], chance.uniform(0, 0.6 * duration), fresh)
                break
            now.pop(0)
            fresh = False
            yield kill
        left += now
        wait_for(begin(pieces, words))
        compare(whole, pieces)
        shutil.rmtree(pieces)


def moments(plan: Plan, duration: float, chance: random.Random) -> list[When]:
    """When to kill, in random order."""
    made: list[When] = [chance.uniform(0, 0.6 * duration) for _ in range(plan.random_kills)]
    made += [chance.randint(1, plan.epochs // 2) for _ in range(plan.writing_kills)]
    for functions, most in PHASES.values():
        lines = [int(most ** chance.random()) for _ in range(plan.phase_kills)]
        made += [Moment(chance.choice(functions), chance.randint(1, 2), line) for line in lines]
    chance.shuffle(made)
    return made


def _earlier(when: When, instead: float, fresh: bool) -> When:
    """`instead` if even a run from its beginning, `fresh`, never calls the function."""
    if isinstance(when, Moment):
        return instead if fresh and when.call == 1 else when._replace(call=1)
    return when / 2 if isinstance(when, float) else 1


def begin(directory: Path, words: tuple[str, ...], moment: Moment | None = None) -> int:
    """The id of a process that trains. It is forked, so that torch need not be loaded each time."""
    directory.mkdir(parents=True, exist_ok=True)
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        if moment is not None:
            die_at(moment)
        running.run(directory, *words)
        code = 0
    except BaseException:
        (directory / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
    finally:
        os._exit(code)


def wait_for(child: int) -> None:
    _, status = os.waitpid(child, 0)
    if status:
        raise AssertionError(f"a run ended with status {status}: look into error.txt of its directory")


def compare(whole: Path, pieces: Path) -> None:
    found = difference(whole / "x", pieces / "x")
    assert found is None, f"{pieces} is not as {whole}: {found}"


def _kill(environment: str, directory: Path, words: tuple[str, ...], when: When) -> Kill | None:
    """None if the run was done before."""
    checkpoints, began = directory / "x" / "checkpoints", time.monotonic()
    before = _written(checkpoints)
    child = begin(directory, words, when if isinstance(when, Moment) else None)
    if not isinstance(when, Moment):
        due = _writes(checkpoints, before, when) if isinstance(when, int) else lambda: time.monotonic() - began > when
        while not due():
            if os.waitpid(child, os.WNOHANG) != (0, 0):
                return None
            time.sleep(0.0002)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        return None
    metrics = directory / "x" / "metrics.jsonl"
    return Kill(
        environment=environment,
        phase=_phase(when),
        seconds=round(time.monotonic() - began, 3),
        epochs=metrics.read_bytes().count(b"\n") if metrics.exists() else 0,
        checkpoint=_newest(checkpoints),
        writing=bool(_written(checkpoints) - before),
    )


def _writes(checkpoints: Path, before: set[tuple[str, int]], number: int) -> Callable[[], bool]:
    """Whether the `number`th checkpoint is being written, not counting what was left there before."""
    seen: set[tuple[str, int]] = set()

    def now() -> bool:
        writing = _written(checkpoints) - before
        seen.update(writing)
        return bool(writing) and len(seen) >= number

    return now


def _written(checkpoints: Path) -> set[tuple[str, int]]:
    """The directories in which checkpoints are being written, or were when a run was killed."""
    found = set()
    for path in checkpoints.glob(".writing_*"):
        with contextlib.suppress(FileNotFoundError):  # renamed in this moment
            found.add((path.name, path.stat().st_ino))
    return found


def _newest(checkpoints: Path) -> int:
    return max((int(path.name.removeprefix("epoch_")) for path in checkpoints.glob("epoch_*")), default=0)


def _phase(when: When) -> str:
    if isinstance(when, Moment):
        return next(phase for phase, (functions, _) in PHASES.items() if when.function in functions)
    return "writing" if isinstance(when, int) else "any"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=12, help="of each run")
    parser.add_argument("--kills", type=int, default=16, help="at random moments, in each environment")
    parser.add_argument("--writing", type=int, default=6, help="while a checkpoint is being written, likewise")
    parser.add_argument("--phase", type=int, default=6, help=f"in each of {', '.join(PHASES)}, likewise")
    parser.add_argument("--environments", nargs="*", default=list(ENVIRONMENTS), choices=ENVIRONMENTS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a JSON file; kills are added to those already in it")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kills: list[Kill] = []
    before = json.loads(arguments.out.read_text()) if arguments.out and arguments.out.exists() else None
    for environment in arguments.environments:
        with tempfile.TemporaryDirectory() as root:
            plan = Plan(arguments.epochs, arguments.kills, arguments.writing, arguments.phase)
            for kill in prove(environment, plan, random.Random(f"{arguments.seed} {environment}"), Path(root)):
                kills.append(kill)
                print(json.dumps(kill._asdict()), flush=True)
        if arguments.out:
            result = summary(kills, before)
            arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    writing = sum(kill.writing for kill in kills)
    print(f"{len(kills)} kills, {writing} of them while writing: all runs ended the same")


def summary(kills: Sequence[Kill], before: dict[str, Any] | None = None) -> dict[str, Any]:
    """All kills as JSON, after those of the summary `before`."""
    before = before or {"command": [], "each": []}
    each = [*before["each"], *(kill._asdict() for kill in kills)]
    return {
        "what": "runs killed with signal 9 and resumed, compared to the bit with runs that were not",
        "command": [*before["command"], " ".join(["tests/support/killing.py", *sys.argv[1:]])],
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors, torch {torch.__version__}",
        "kills": len(each),
        "while writing a checkpoint": sum(kill["writing"] for kill in each),
        "by phase": dict(Counter(kill["phase"] for kill in each)),
        "by environment": dict(Counter(kill["environment"] for kill in each)),
        "before the first checkpoint": sum(kill["checkpoint"] == 0 for kill in each),
        "different": 0,  # else it would have stopped
        "each": each,
    }


if __name__ == "__main__":
    sys.exit(main())
