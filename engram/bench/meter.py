"""The measured program's side of the protocol: JSON lines on standard input and output, handled between iterations.

    {"measure": 3.0}     train for about 3 seconds -> {"steps": …, "updates": …, "seconds": …, "phases": {…}}
    {"learn": 500000}    train up to 500000 steps  -> {"steps": …, "seconds": …, "return": …}
    {"train": 600}       train for 600 seconds, or until `end` -> {"curve": [[seconds, steps, return, greedy], …], …}

Between commands the program waits; it exits when its input ends. This file does not import Engram, because programs
that train with other libraries load it too.
"""

import json
import os
import sys
import time
from contextlib import contextmanager


class Meter:
    """Answers commands, and counts steps, optimiser updates and the time of each phase."""

    def __init__(self) -> None:
        # Libraries print: standard output is reserved for replies, and prints go to standard error.
        sys.stdout.flush()
        self._replies = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self._command: dict | None = None
        self._total_steps = self._command_steps = 0
        self.updates = 0  # optimiser steps in this process; they show whether all programs do the same work
        if "torch" in sys.modules:
            from torch.optim.optimizer import register_optimizer_step_pre_hook

            register_optimizer_step_pre_hook(self._count_update)
        self._command_start = time.perf_counter()
        # Not the start of this meter: some programs create it before they import their library, others after it.
        now = time.time()
        self._program_start = self._command_start - (now - float(os.environ.get("ENGRAM_BENCH_STARTED", now)))
        self._phases: dict[str, float] = {}
        self._notes: dict[str, list[float]] = {}
        self._stack: list[str] = []
        self._curve: list[list] = []  # of "train"
        self._phase_start = 0.0

    def iteration(self, steps: int, recent_return: float | None = None, greedy: float | None = None) -> None:
        """Call after every iteration of rollout and learning. The first one is a warm-up and reports readiness.

        `recent_return` is that of recent training episodes, `greedy` that of an evaluation after this iteration.
        """
        self._total_steps += steps
        self._command_steps += steps
        now = self._end_phase()
        if self._command is None:
            self._reply({"ready": True})
        elif "measure" in self._command and now - self._command_start >= self._command["measure"]:
            reply = {
                "steps": self._command_steps,
                "updates": self.updates,
                "seconds": now - self._command_start,
                "phases": self._phases,
                "notes": self._notes,
            }
            self._reply(reply)
        elif "learn" in self._command and self._total_steps >= self._command["learn"]:
            self._reply({"steps": self._total_steps, "seconds": now - self._program_start, "return": recent_return})
        elif "train" in self._command:
            self._curve.append([round(now - self._program_start, 2), self._total_steps, recent_return, greedy])
            if now - self._program_start < self._command["train"]:
                return
            self._reply({"curve": self._curve})
        else:
            return
        self._wait()

    def end(self, **figures: float) -> None:
        """Call when training is over, with figures to report if any: replies to `train`, if that is still running."""
        if self._command is not None and "train" in self._command:
            self._reply({"curve": self._curve, **figures})
            self._wait()

    @contextmanager
    def phase(self, name: str):
        """Count the time of this block for a phase, without the time of phases nested in it."""
        self._end_phase()
        self._stack.append(name)
        try:
            yield
        finally:
            self._end_phase()
            self._stack.pop()

    def exclude(self, seconds: float) -> None:
        """Leave time out of the measurement, such as that of evaluations. Call before the iteration ends."""
        self._program_start += seconds
        self._command_start += seconds

    def add(self, phase: str, seconds: float) -> None:
        """Count time for a phase that was measured elsewhere."""
        self._phases[phase] = self._phases.get(phase, 0.0) + seconds

    def note(self, name: str, value: float) -> None:
        """Record a value of the current iteration; the next reply lists them."""
        self._notes.setdefault(name, []).append(value)

    def wrap(self, owner: object, method: str, phase: str) -> None:
        """Count the time of a method for a phase."""
        original = getattr(owner, method)

        def timed(*args, **kwargs):
            with self.phase(phase):
                return original(*args, **kwargs)

        setattr(owner, method, timed)

    def _count_update(self, *_: object) -> None:
        self.updates += 1

    def _end_phase(self) -> float:
        """Count the time until now for the innermost phase, and start the next one now. Returns now."""
        now = time.perf_counter()
        if self._stack:
            name = self._stack[-1]
            self._phases[name] = self._phases.get(name, 0.0) + now - self._phase_start
        self._phase_start = now
        return now

    def _reply(self, reply: dict) -> None:
        self._replies.write(json.dumps(reply) + "\n")
        self._replies.flush()

    def _wait(self) -> None:
        line = sys.stdin.readline()
        if not line:
            sys.stderr.flush()
            os._exit(0)  # also ends threads that the library still runs
        self._command = json.loads(line)
        self._command_steps = self.updates = 0
        self._phases, self._notes, self._command_start = {}, {}, time.perf_counter()
        self._phase_start = self._command_start
