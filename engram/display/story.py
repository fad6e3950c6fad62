"""The story of a run so far: what was planned, the latest figures, how fast it goes, and the curve of returns."""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from engram.env.spec import EnvSpec

Record = Mapping[str, Any]
Ending = Literal["done", "stopped"]

PHASES = ("environment", "inference", "learning")
RECENT_EPOCHS = 30  # speeds are means over these: long enough to be calm, short enough to follow
CURVE_POINTS = 1024  # more than a terminal has columns, whatever the length of the run


class Sizes(Protocol):
    """The sizes of a run that a person wants to see."""

    @property
    def num_envs(self) -> int: ...
    @property
    def horizon(self) -> int: ...
    @property
    def segments(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def minibatch_size(self) -> int: ...
    @property
    def num_workers(self) -> int: ...


class Plan(Protocol):
    """What is about to be trained."""

    @property
    def run(self) -> str: ...
    @property
    def policy(self) -> str: ...
    @property
    def env(self) -> EnvSpec: ...
    @property
    def sizes(self) -> Sizes: ...
    @property
    def device(self) -> str: ...
    @property
    def parameters(self) -> int: ...
    @property
    def total_timesteps(self) -> int: ...
    @property
    def steps_done(self) -> int: ...


class Result(Protocol):
    """What came of it."""

    @property
    def run(self) -> str: ...
    @property
    def checkpoint(self) -> Path | None: ...
    @property
    def env(self) -> EnvSpec: ...
    @property
    def steps(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def mean_return(self) -> float | None: ...


class Curve:
    """Returns over steps. When it grows long, every second point goes, so that it always spans the whole run."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.values: list[float] = []

    def add(self, steps: int, value: float) -> None:
        if len(self.steps) >= CURVE_POINTS:
            del self.steps[1::2], self.values[1::2]
        self.steps.append(steps)
        self.values.append(value)


class Story:
    """Follows a run record by record. `clock` tells the time that passes between two of them."""

    def __init__(self, plan: Plan, clock: Callable[[], float] = time.monotonic) -> None:
        self.plan = plan
        self.record: Record = {}
        self.curve = Curve()
        self.ending: Ending | None = None
        self._recent: deque[Record] = deque(maxlen=RECENT_EPOCHS)
        self._clock = clock
        self._time = clock()

    def add(self, record: Record) -> None:
        self.record, self._time = record, self._clock()
        if self.value("time/steps_per_second"):
            self._recent.append(record)
        if (value := self.value("return")) is not None and math.isfinite(value):
            self.curve.add(self.steps, value)

    def end(self, ending: Ending) -> None:
        self.ending, self._time = self.ending or ending, self._clock()

    def value(self, name: str) -> float | None:
        """A figure of the latest epoch, if it has it."""
        value = self.record.get(name)
        return None if value is None else float(value)

    @property
    def epoch(self) -> int:
        return int(self.record.get("epoch", 0))

    @property
    def steps(self) -> int:
        return int(self.record.get("steps", self.plan.steps_done))

    @property
    def share_done(self) -> float:
        return min(self.steps / max(self.plan.total_timesteps, 1), 1.0)

    @property
    def seconds(self) -> float:
        """Of training, over all sittings, up to now."""
        return (self.value("time/seconds") or 0.0) + self._waiting

    @property
    def steps_per_second(self) -> float | None:
        """Over recent epochs, which are all of equal size: hence the harmonic mean."""
        return len(self._recent) / self._inverse_speeds if self._recent else None

    @property
    def seconds_left(self) -> float | None:
        if self.ending or (speed := self.steps_per_second) is None:
            return None
        return max((self.plan.total_timesteps - self.steps) / speed - self._waiting, 0.0)

    @property
    def shares(self) -> dict[str, float]:
        """Of recent time, by phase; the rest is `other`, such as saving checkpoints."""
        total = self.plan.sizes.batch_size * self._inverse_speeds
        if not total:
            return {}
        spent = {phase: sum(r.get(f"time/{phase}_seconds") or 0.0 for r in self._recent) for phase in PHASES}
        total = max(total, sum(spent.values()))
        return {phase: seconds / total for phase, seconds in spent.items()} | {"other": 1 - sum(spent.values()) / total}

    @property
    def _inverse_speeds(self) -> float:
        return sum(1 / record["time/steps_per_second"] for record in self._recent)

    @property
    def _waiting(self) -> float:
        """Since the latest record; a run that has ended waits for nothing."""
        return 0.0 if self.ending else self._clock() - self._time
