"""RunProgress: the latest metrics of a run, its speed, the time left, and the curve of its returns."""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from engram.training.run import RunPlan

Record = Mapping[str, Any]  # the metrics of an epoch
Ending = Literal["done", "stopped"]

PHASES = ("environment", "inference", "learning")
EPISODE_FIGURES = ("episode/count", "episode/return", "episode/length")  # of every environment
RECENT_EPOCHS = 30  # speeds are averaged over these
CURVE_POINTS = 1024  # more than a terminal has columns


class ReturnCurve:
    """Returns over steps. A long curve drops every second point, so that it always spans the whole run."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.values: list[float] = []

    def add(self, steps: int, value: float) -> None:
        if len(self.steps) >= CURVE_POINTS:
            del self.steps[1::2], self.values[1::2]
        self.steps.append(steps)
        self.values.append(value)


class RunProgress:
    """Follows a run from record to record; `clock` measures the time between two of them."""

    def __init__(self, plan: "RunPlan", clock: Callable[[], float] = time.monotonic) -> None:
        self.plan = plan
        self.record: Record = {}
        self.curve = ReturnCurve()
        self.best: tuple[float, int] | None = None  # the highest return, and the steps at which it was reached
        self.ending: Ending | None = None
        self._recent: deque[Record] = deque(maxlen=RECENT_EPOCHS)
        self._clock = clock
        self._record_time = clock()

    def add(self, record: Record) -> None:
        self.record, self._record_time = record, self._clock()
        if self.value("time/steps_per_second"):
            self._recent.append(record)
        if (value := self.value("return")) is not None and math.isfinite(value):
            self.curve.add(self.steps, value)
            if self.best is None or value > self.best[0]:
                self.best = value, self.steps

    def end(self, ending: Ending) -> None:
        self.ending, self._record_time = self.ending or ending, self._clock()

    def value(self, name: str) -> float | None:
        """A metric of the latest epoch, if it has it."""
        value = self.record.get(name)
        return None if value is None else float(value)

    @property
    def statistics(self) -> dict[str, str]:
        """The environment's own statistics: label -> key of the record."""
        own = [name for name in self.record if name.startswith("episode/") and name not in EPISODE_FIGURES]
        return {name.removeprefix("episode/").replace("_", " "): name for name in own}

    @property
    def epoch(self) -> int:
        return int(self.record.get("epoch", 0))

    @property
    def steps(self) -> int:
        return int(self.record.get("steps", self.plan.steps_done))

    @property
    def fraction_done(self) -> float:
        return min(self.steps / max(self.plan.total_timesteps, 1), 1.0)

    @property
    def seconds(self) -> float:
        """The training time so far, including the time before the run was resumed."""
        return (self.value("time/seconds") or 0.0) + self._seconds_since_record

    @property
    def steps_per_second(self) -> float | None:
        """The harmonic mean over recent epochs, which all have the same number of steps."""
        return len(self._recent) / self._sum_of_seconds_per_step if self._recent else None

    @property
    def seconds_left(self) -> float | None:
        if self.ending or (speed := self.steps_per_second) is None:
            return None
        return max((self.plan.total_timesteps - self.steps) / speed - self._seconds_since_record, 0.0)

    @property
    def time_fractions(self) -> dict[str, float]:
        """The fraction of recent time that each phase took. The rest is `other`, such as saving checkpoints."""
        total = self.plan.sizes.batch_size * self._sum_of_seconds_per_step
        if not total:
            return {}
        spent = {phase: sum(r.get(f"time/{phase}_seconds") or 0.0 for r in self._recent) for phase in PHASES}
        total = max(total, sum(spent.values()))
        return {phase: seconds / total for phase, seconds in spent.items()} | {"other": 1 - sum(spent.values()) / total}

    @property
    def _sum_of_seconds_per_step(self) -> float:
        return sum(1 / record["time/steps_per_second"] for record in self._recent)

    @property
    def _seconds_since_record(self) -> float:
        """Seconds since the latest record, or 0 if the run has ended."""
        return 0.0 if self.ending else self._clock() - self._record_time
