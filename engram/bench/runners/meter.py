"""The measured side of the protocol: lines of JSON on standard input and output, answered between iterations.

    {"measure": 3.0}     train for about 3 seconds -> {"steps": …, "updates": …, "seconds": …, "phases": {…}}
    {"learn": 500000}    train up to so many steps -> {"steps": …, "seconds": …, "return": …}

Between commands the program waits. The end of the input ends it.
"""

import json
import os
import sys
import time
from contextlib import contextmanager


def options() -> dict:
    """What to run, from the command line."""
    return json.loads(sys.argv[1])


class Meter:
    def __init__(self) -> None:
        # Libraries print: standard output is kept for answers, and what they print goes to the errors.
        sys.stdout.flush()
        self._answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self._command: dict | None = None
        self._total = self._steps = 0
        self.updates = 0  # steps of optimisers in this process: what shows that all do the same work
        if "torch" in sys.modules:
            from torch.optim.optimizer import register_optimizer_step_pre_hook

            register_optimizer_step_pre_hook(self._update)
        self._began = self._start = time.perf_counter()
        self._phases: dict[str, float] = {}
        self._notes: dict[str, list[float]] = {}
        self._stack: list[str] = []
        self._since = 0.0

    def iteration(self, steps: int, recent_return: float | None = None) -> None:
        """Call after every iteration of rollout and learning. The first is a warm-up; it also says all is well."""
        self._total += steps
        self._steps += steps
        self._switch()
        now = self._since
        if self._command is None:
            self._answer({"ready": True})
        elif "measure" in self._command and now - self._start >= self._command["measure"]:
            answer = {
                "steps": self._steps,
                "updates": self.updates,
                "seconds": now - self._start,
                "phases": self._phases,
                "notes": self._notes,
            }
            self._answer(answer)
        elif "learn" in self._command and self._total >= self._command["learn"]:
            self._answer({"steps": self._total, "seconds": now - self._began, "return": recent_return})
        else:
            return
        self._wait()

    @contextmanager
    def phase(self, name: str):
        """Time spent here counts for this phase; time in a phase within it does not."""
        self._switch()
        self._stack.append(name)
        try:
            yield
        finally:
            self._switch()
            self._stack.pop()

    def add(self, phase: str, seconds: float) -> None:
        """Time that somebody else has measured."""
        self._phases[phase] = self._phases.get(phase, 0.0) + seconds

    def note(self, name: str, value: float) -> None:
        """A figure of the iteration that ends now; all of them are given with the answer."""
        self._notes.setdefault(name, []).append(value)

    def wrap(self, owner: object, method: str, phase: str) -> None:
        """Let a method's time count for a phase."""
        original = getattr(owner, method)

        def timed(*args, **kwargs):
            with self.phase(phase):
                return original(*args, **kwargs)

        setattr(owner, method, timed)

    def _update(self, *_: object) -> None:
        self.updates += 1

    def _switch(self) -> None:
        now = time.perf_counter()
        if self._stack:
            name = self._stack[-1]
            self._phases[name] = self._phases.get(name, 0.0) + now - self._since
        self._since = now

    def _answer(self, answer: dict) -> None:
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()

    def _wait(self) -> None:
        line = sys.stdin.readline()
        if not line:
            sys.stderr.flush()
            os._exit(0)  # whatever the library still has running ends with it
        self._command = json.loads(line)
        self._steps = self.updates = 0
        self._phases, self._notes, self._start = {}, {}, time.perf_counter()
        self._since = self._start
