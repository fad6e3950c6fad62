"""A race: contestants measured in turns, in short slices of time, and compared by the ratio of their totals.

The speed of a shared machine drifts and may double or halve within seconds. Therefore contestants never run one after
the other, but in rounds. Each gets one slice per round, and the order is reversed every round. A ratio is one
contestant's total rate divided by another's; its quartiles come from the single rounds.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any, NamedTuple

import psutil


@dataclass(frozen=True)
class Options:
    """Options of all benchmarks; each uses some of them. Checked before torch is imported."""

    rounds: int = 15
    seconds: float = 0.2  # per slice
    threads: list[int] = field(default_factory=lambda: [1, 2])  # torch threads; the fastest counts
    rows: list[int] = field(default_factory=lambda: [256, 1024])
    steps: int = 64
    hidden: int = 128
    layers: int = 2
    resets: float = 0.02  # probability of an episode start, per row and step
    tasks: list[str] = field(default_factory=list)  # empty: all
    policies: list[str] = field(default_factory=list)  # empty: all
    epochs: int = 200  # length of the run whose memory must not grow

    def to_json(self) -> dict[str, Any]:
        return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}

    def includes(self, task: str) -> bool:
        return not self.tasks or task in self.tasks


class Slice(NamedTuple):
    """The work of one contestant in one round."""

    work: float  # rows, steps or calls
    seconds: float
    phases: dict[str, float] = {}  # seconds by phase, where known


Measure = Callable[[float], Slice]  # works for about the given number of seconds
Step = Callable[[], float]  # does one unit of work and returns its size


@dataclass(frozen=True)
class Contestant:
    """Something to measure. Among contestants with the same name, the fastest counts."""

    name: str
    open: Callable[[], AbstractContextManager[Measure]]
    threads: int = 1
    note: str = ""  # distinguishes contestants with the same name


@dataclass
class Entry:
    """The measurement of one contestant. `ratio` compares it with the fastest contestant of the baseline's name."""

    name: str
    threads: int
    note: str = ""
    work: float = 0.0
    seconds: float = 0.0
    rate: float | None = None  # work per second, over all slices
    ratio: float | None = None
    low: float | None = None  # quartiles of the ratio over the rounds
    high: float | None = None
    others: float | None = None  # cores that other programs kept busy: above about 0.1, distrust results of 2 threads
    phases: dict[str, float] = field(default_factory=dict)  # fractions of the time
    failed: str | None = None  # the reason why there is no measurement
    best: bool = False  # the fastest of its name
    facts: dict[str, float | str] = field(default_factory=dict)  # further columns of the table

    @property
    def title(self) -> str:
        return ", ".join([self.name, *filter(None, [self.note]), f"{self.threads} thread{'s' * (self.threads > 1)}"])


@dataclass
class Race:
    name: str
    unit: str  # of work: rows, steps, calls
    shows: str  # "speed" or "time": the quantity that ratios and tables show
    baseline: str
    entries: list[Entry]

    def best(self, name: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.name == name and entry.best), None)

    def ratio(self, name: str, to: str) -> float | None:
        """The best of `name` divided by the best of `to`; None if either was not measured."""
        numerator, denominator = self.best(name), self.best(to)
        if numerator is None or denominator is None or not numerator.rate or not denominator.rate:
            return None
        ratio = numerator.rate / denominator.rate
        return ratio if self.shows == "speed" else 1 / ratio


def run_race(
    name: str,
    contestants: Sequence[Contestant],
    rounds: int,
    seconds: float,
    unit: str = "rows",
    shows: str = "speed",
    baseline: str | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Race:
    """Measure all contestants for `rounds` slices of `seconds`. One that fails gets the reason in its entry."""
    entries = [Entry(contestant.name, contestant.threads, contestant.note) for contestant in contestants]
    slices: list[dict[int, Slice]] = [{} for _ in range(rounds)]
    loads: list[list[OtherLoad]] = [[] for _ in entries]
    with ExitStack() as stack:
        measures: dict[int, Measure] = {}
        for number, contestant in enumerate(contestants):
            progress(f"{name}: starting {entries[number].title}")
            with _record_failure(entries[number]):
                measures[number] = stack.enter_context(contestant.open())
        for index, measured in enumerate(slices):
            for number in measures if index % 2 == 0 else reversed(list(measures)):
                progress(f"{name}: round {index + 1} of {rounds}, {entries[number].title}")
                if entries[number].failed is None:
                    with _record_failure(entries[number]), measure_other_load() as load:
                        measured[number] = measures[number](seconds)
                    loads[number].append(load)
    for number, entry in enumerate(entries):
        _sum_up(entry, [measured[number] for measured in slices if number in measured], loads[number])
    race = Race(name, unit, shows, baseline or contestants[0].name, entries)
    _mark_best(race)
    _compare(race, slices)
    return race


def in_process(
    make: Callable[[], AbstractContextManager[Step]], threads: int
) -> Callable[[], AbstractContextManager[Measure]]:
    """`Contestant.open` for a function that is called repeatedly in this process, with this many torch threads."""
    import torch  # here: options are checked before torch is loaded

    @contextmanager
    def open_function() -> Iterator[Measure]:
        with make() as step:

            def measure(seconds: float) -> Slice:
                torch.set_num_threads(threads)
                step()  # not timed: caches hold the previous contestant's data, and threads may have to start
                work, start = 0.0, time.perf_counter()
                while True:
                    work += step()
                    elapsed = time.perf_counter() - start
                    if elapsed >= seconds:
                        return Slice(work, elapsed)

            yield measure

    return open_function


@dataclass
class OtherLoad:
    cpu_seconds: float = 0.0  # CPU time of all programs but this one and its children
    seconds: float = 0.0  # wall-clock time


@contextmanager
def measure_other_load() -> Iterator[OtherLoad]:
    """Measures the CPU time that other programs use, or that the host takes away, while the block runs."""
    load, start, total, own = OtherLoad(), time.perf_counter(), _total_cpu_seconds(), _own_cpu_seconds()
    try:
        yield load
    finally:
        load.cpu_seconds = max(0.0, (_total_cpu_seconds() - total) - (_own_cpu_seconds() - own))
        load.seconds = time.perf_counter() - start


@contextmanager
def _record_failure(entry: Entry) -> Iterator[None]:
    """Puts an exception into the entry, so that the race continues without this contestant."""
    try:
        yield
    except Exception as error:
        entry.failed = str(error) or type(error).__name__


def _sum_up(entry: Entry, slices: list[Slice], loads: list[OtherLoad]) -> None:
    if entry.failed is not None or not slices:
        return
    entry.work, entry.seconds = sum(s.work for s in slices), sum(s.seconds for s in slices)
    entry.rate = entry.work / entry.seconds
    entry.others = sum(load.cpu_seconds for load in loads) / sum(load.seconds for load in loads)
    for phase in {phase: None for s in slices for phase in s.phases}:
        entry.phases[phase] = sum(s.phases.get(phase, 0.0) for s in slices) / entry.seconds


def _mark_best(race: Race) -> None:
    for name in {entry.name for entry in race.entries}:
        measured = [entry for entry in race.entries if entry.name == name and entry.rate]
        if measured:
            max(measured, key=lambda entry: entry.rate or 0.0).best = True


def _compare(race: Race, slices: list[dict[int, Slice]]) -> None:
    baseline = race.best(race.baseline)
    if baseline is None or baseline.rate is None:
        return
    base, sign = race.entries.index(baseline), 1 if race.shows == "speed" else -1
    for number, entry in enumerate(race.entries):
        if entry.rate is None:
            continue
        entry.ratio = (entry.rate / baseline.rate) ** sign
        rounds = [
            ((measured[number].work / measured[number].seconds) / (measured[base].work / measured[base].seconds))
            ** sign
            for measured in slices
            if number in measured and base in measured and measured[base].work and measured[number].work
        ]
        if len(rounds) > 1:
            entry.low, _, entry.high = quantiles(rounds, n=4, method="inclusive")


def _total_cpu_seconds() -> float:
    """CPU time that all programs have used or that the host took away."""
    times = psutil.cpu_times()
    excluded = ("idle", "iowait", "guest", "guest_nice")  # user time already includes guests
    return sum(seconds for name, seconds in times._asdict().items() if name not in excluded)


def _own_cpu_seconds() -> float:
    total = 0.0
    for member in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = member.cpu_times()
        except psutil.Error:  # it has ended
            continue
        total += times.user + times.system
    return total
