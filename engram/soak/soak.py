"""The soak: rounds of training with faults at random moments, each compared with an undisturbed run."""

import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engram.soak.faults import EXACT, RESTARTS, Disk, Fault
from engram.soak.report import Injection, Report, Round, memory_slope
from engram.soak.trial import Command, Trial, difference

BATCH, INTERVAL, UPDATES = 256, 5, 4  # steps and updates of an epoch, epochs between checkpoints
TASK = [
    "env=python",
    "env.name=engram.soak.environment:Cue",
    "py_agent.hidden_size=16",
    "trainer.num_envs=16",
    "trainer.bptt_horizon=16",
    f"trainer.batch_size={BATCH}",
    f"trainer.minibatch_size={BATCH // 2}",
    "trainer.update_epochs=2",
    f"trainer.checkpoint.interval={INTERVAL}",
    "trainer.worker_timeout=4",
    "trainer.worker_restarts=1000",
    "device=cpu",
]
RESTARTS_LENGTH = 5  # epochs of a round with restarts per epoch of an exact one, so that growing memory shows
MAX_PAUSE = 0.2  # before a fault, as a fraction of an exact run
MIN_FAULTS, MAX_FAULTS = 2, {"exact": 8, "restarts": 10**6}  # per round
END_SECONDS = 300.0  # for a program to end, or a restart to be counted: a worker may take 120 to build
SOLVED, TOLERANCE = 0.9, 0.1  # of the mean return, whose best is 1


@dataclass(frozen=True)
class Plan:
    minutes: float
    epochs: int  # of an exact run
    seed: int
    directory: Path


def soak(plan: Plan, command: Command, progress: Callable[[str], None]) -> Report:
    """Train and inject faults until the time is over, for at least one round of each kind."""
    return _Soak(plan, command, progress).run()


class _Soak:
    def __init__(self, plan: Plan, command: Command, progress: Callable[[str], None]) -> None:
        self.plan, self.command, self.progress = plan, command, progress
        self.rng, self.report = random.Random(plan.seed), Report()
        self.disk = Disk(plan.directory / "disk")
        self.report.disk = "a small file system" if self.disk.mounted else "a limit on the size of files"
        self.seconds: dict[str, float] = {}  # of the undisturbed runs

    def run(self) -> Report:
        deadline = time.monotonic() + 60 * self.plan.minutes
        faults = {"exact": _cycle(EXACT, self.rng), "restarts": _cycle(RESTARTS, self.rng)}
        try:
            references = {kind: self._reference(kind) for kind in faults}
            spent = dict.fromkeys(faults, 0.0)
            while time.monotonic() < deadline or not all(spent.values()):
                kind = min(spent, key=lambda each: spent[each])
                began = time.monotonic()
                self._round(kind, faults[kind], references[kind], deadline)
                spent[kind] += time.monotonic() - began
        finally:
            self.disk.close()
        return self.report

    def _overrides(self, kind: str) -> Sequence[str]:
        exact = kind == "exact"
        steps = BATCH * self.plan.epochs * (1 if exact else RESTARTS_LENGTH)
        return [*TASK, f"trainer.total_timesteps={steps}", f"trainer.num_workers={0 if exact else 2}"]

    def _reference(self, kind: str) -> Trial:
        with Trial(self.plan.directory / kind, self._overrides(kind), self.command) as trial:
            trial.start()
            trial.wait()
        self.seconds[kind] = time.monotonic() - trial.started
        if trial.code:
            self.report.broken_promises.append(
                f"an undisturbed run ended with code {trial.code}: {trial.last_output_line()}"
            )
        self.progress(f"undisturbed run ({kind}): {self.seconds[kind]:.0f} s")
        return trial

    def _round(
        self, kind: str, faults: Iterator[tuple[str, Fault]], reference: Trial, deadline: float, attempts: int = 5
    ) -> None:
        number, began = len(self.report.rounds) + 1, time.monotonic()
        with Trial(self.disk.path / f"round_{number}", self._overrides(kind), self.command) as trial:
            trial.start()
            self._break_run(trial, faults, number, MAX_FAULTS[kind], deadline)
            if trial.wait(END_SECONDS + 5 * self.seconds[kind]) != 0:
                self._broken(f"round {number} ended with code {trial.code}: {trial.last_output_line()}")
        self.report.orphans += trial.end_orphans()
        result = self._judge(number, kind, reference, trial, time.monotonic() - began)
        shutil.rmtree(trial.directory)
        if not result.faults and attempts > 1:  # it ended before the first fault, so try again
            return self._round(kind, faults, reference, deadline, attempts - 1)
        self.report.rounds.append(result)
        self.progress(str(result))

    def _break_run(
        self, trial: Trial, faults: Iterator[tuple[str, Fault]], number: int, max_faults: int, deadline: float
    ) -> None:
        """Inject at most this many faults until the run is done; after the deadline, no more than MIN_FAULTS."""
        for count in range(max_faults):
            if time.monotonic() > deadline and count >= MIN_FAULTS:
                return
            if (injection := self._inject(trial, *next(faults), number)) is None:
                return
            self.report.injections.append(injection)
            self.progress(str(injection))

    def _inject(self, trial: Trial, name: str, fault: Fault, number: int) -> Injection | None:
        """Inject a fault at a random moment and check the outcome; None if the run ended before."""
        pause = self.rng.uniform(0, MAX_PAUSE * self.seconds["exact"])
        while not fault.ready(trial) or pause > 0:
            if trial.wait(0.01) is not None:
                return None
            pause -= 0.01 if fault.ready(trial) else 0
        seconds, epochs = time.monotonic() - trial.started, trial.epochs()
        restarts = _restarts(trial)
        fault.inject(trial, self.disk, self.rng)
        code = trial.wait(END_SECONDS) if fault.code is not None else self._wait_for_restart(trial, name, restarts)
        problem = self._problem(trial, name, fault, code, restarts)
        if code == 0 and len(trial.epochs()) > len(epochs) + 2:
            problem = f"had no effect: the run ended {len(trial.epochs()) - len(epochs)} epochs later"
        lost = _lost_epochs(trial) if code is not None else 0
        if lost and not fault.loses_epochs:
            problem = problem or f"{lost} whole epochs were lost"
        if problem:
            self._broken(f"round {number}, {name}: {problem}")
        if code is not None:
            self.report.orphans += trial.end_orphans()
            trial.start()
        return Injection(number, name, round(seconds, 2), len(epochs), code, lost * BATCH, problem)

    def _wait_for_restart(self, trial: Trial, name: str, restarts: int) -> int | None:
        """Wait until a restart is counted. Returns the exit code if the run failed; None if it trains on or is done."""
        deadline = time.monotonic() + END_SECONDS
        while name in RESTARTS and _restarts(trial) <= restarts and time.monotonic() < deadline:
            if trial.wait(0.05) is not None:
                break
        return trial.code or None  # not 0: a run that has finished its training meanwhile did not fail

    def _problem(self, trial: Trial, name: str, fault: Fault, code: int | None, restarts: int) -> str | None:
        if fault.code is not None and code is None:
            trial.kill()
            return f"did not end within {END_SECONDS:g} s"
        if code not in (fault.code, 0, None):
            return f"ended with code {code}, expected {fault.code or 'to continue'}: {trial.last_output_line()}"
        if name in RESTARTS and trial.code is None and _restarts(trial) <= restarts:
            return f"no restart was counted within {END_SECONDS:g} s"
        return None

    def _judge(self, number: int, kind: str, reference: Trial, trial: Trial, seconds: float) -> Round:
        injected = sum(each.round == number for each in self.report.injections)
        ours, theirs = (each.epochs()[-1].get("return") for each in (trial, reference))
        result = Round(number, kind, injected, round(seconds, 1), ours, theirs)
        if kind == "exact":
            result.difference = difference(reference.run, trial.run, ["latest"])
            if result.difference:
                self._broken(f"round {number} differs from the undisturbed run: {result.difference}")
            return result
        if theirs is not None and theirs >= SOLVED and (ours is None or ours < theirs - TOLERANCE):
            self._broken(f"round {number}: return {ours}, undisturbed {theirs:.3f}")
        result.restarts = _restarts(trial)
        result.memory = memory_slope([each["process/megabytes"] for each in trial.epochs()], UPDATES)
        if result.memory and result.memory.grows:
            self._broken(f"round {number}: memory grows by {result.memory}")
        return result

    def _broken(self, problem: str) -> None:
        self.report.broken_promises.append(problem)


def _cycle(faults: Mapping[str, Fault], rng: random.Random) -> Iterator[tuple[str, Fault]]:
    """All faults in random order, again and again."""
    while True:
        yield from rng.sample(sorted(faults.items(), key=lambda each: each[0]), len(faults))


def _restarts(trial: Trial) -> int:
    epochs = trial.epochs()
    return int(epochs[-1]["env/worker_restarts"]) if epochs else 0


def _lost_epochs(trial: Trial) -> int:
    """Whole epochs of this child since its last readable checkpoint."""
    if not trial.has_trained():
        return 0
    epochs, newest = trial.epochs(), trial.newest()
    saved = 0 if newest is None else newest.state["progress"]["epoch"]
    return max(0, epochs[-1]["epoch"] - saved) if epochs else 0
