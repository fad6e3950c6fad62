"""A race: contestants measured in turns, in short slices of time, and compared by ratios of totals.

The speed of a machine that is shared drifts, and may double or halve within seconds. So contestants never run one after
the other but in rounds, each for a slice a round, in an order that turns round every time; a ratio is one contestant's
total by another's, and its spread is what the rounds said one by one.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from statistics import quantiles
from typing import NamedTuple

from engram.bench.machine import Others, others_meter


class Slice(NamedTuple):
    """What a contestant did in one of its turns."""

    work: float  # rows, steps or calls
    seconds: float
    phases: dict[str, float] = {}  # seconds by phase, where they are known


Measure = Callable[[float], Slice]  # works for about so many seconds


@dataclass(frozen=True)
class Contestant:
    """Somebody who can be measured. Several may have one name: then the fastest of them counts."""

    name: str
    open: Callable[[], AbstractContextManager[Measure]]
    threads: int = 1
    note: str = ""  # what else tells it from others of its name


@dataclass
class Entry:
    """What came of a contestant. `ratio` is to the best of the baseline's name: speeds or times, as the race says."""

    name: str
    threads: int
    note: str = ""
    work: float = 0.0
    seconds: float = 0.0
    rate: float | None = None  # work a second, over all slices
    ratio: float | None = None
    low: float | None = None  # quartiles of the ratio, round by round
    high: float | None = None
    others: float | None = None  # processors that other programs kept busy: above about 0.1, distrust two threads
    phases: dict[str, float] = field(default_factory=dict)  # shares of the time
    failed: str | None = None  # why there is nothing to compare
    best: bool = False  # the fastest of its name
    facts: dict[str, float | str] = field(default_factory=dict)  # whatever else was found out

    @property
    def title(self) -> str:
        return ", ".join([self.name, *filter(None, [self.note]), f"{self.threads} thread{'s' * (self.threads > 1)}"])


@dataclass
class Race:
    name: str
    unit: str  # of work: rows, steps, calls
    shows: str  # "speed" or "time": which of the two ratios and tables are about
    baseline: str
    entries: list[Entry]

    def best(self, name: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.name == name and entry.best), None)

    def ratio(self, name: str, to: str) -> float | None:
        """Of two names, best by best; None if one of them has no figure."""
        ours, theirs = self.best(name), self.best(to)
        if ours is None or theirs is None or not ours.rate or not theirs.rate:
            return None
        return ours.rate / theirs.rate if self.shows == "speed" else theirs.rate / ours.rate


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
    """Measure everybody for `rounds` slices of `seconds`. Who cannot start or go on has the reason in its entry."""
    entries = [Entry(contestant.name, contestant.threads, contestant.note) for contestant in contestants]
    slices: list[dict[int, Slice]] = [{} for _ in range(rounds)]
    others: list[list[Others]] = [[] for _ in entries]
    with ExitStack() as stack:
        measures: dict[int, Measure] = {}
        for number, contestant in enumerate(contestants):
            progress(f"{name}: {entries[number].title} starts")
            with _noting(entries[number]):
                measures[number] = stack.enter_context(contestant.open())
        for turn, found in enumerate(slices):
            for number in _order(measures, turn):
                progress(f"{name}: round {turn + 1} of {rounds}, {entries[number].title}")
                if entries[number].failed is None:
                    with _noting(entries[number]), others_meter() as meter:
                        found[number] = measures[number](seconds)
                    others[number].append(meter)
    for number, entry in enumerate(entries):
        _sum_up(entry, [found[number] for found in slices if number in found], others[number])
    race = Race(name, unit, shows, baseline or contestants[0].name, entries)
    _mark_best(race)
    _compare(race, slices)
    return race


class _noting:  # noqa: N801 (reads as a verb)
    """A failure is the entry's, not the race's."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._entry.failed = str(error) or type(error).__name__
        return True


def _order(measures: dict[int, Measure], turn: int) -> Iterator[int]:
    yield from measures if turn % 2 == 0 else reversed(list(measures))


def _sum_up(entry: Entry, slices: list[Slice], others: list[Others]) -> None:
    if entry.failed is not None or not slices:
        return
    entry.work, entry.seconds = sum(s.work for s in slices), sum(s.seconds for s in slices)
    entry.rate = entry.work / entry.seconds
    entry.others = sum(other.used for other in others) / sum(other.seconds for other in others)
    for phase in {phase: None for s in slices for phase in s.phases}:
        entry.phases[phase] = sum(s.phases.get(phase, 0.0) for s in slices) / entry.seconds


def _mark_best(race: Race) -> None:
    for name in {entry.name for entry in race.entries}:
        known = [entry for entry in race.entries if entry.name == name and entry.rate]
        if known:
            max(known, key=lambda entry: entry.rate or 0.0).best = True


def _compare(race: Race, slices: list[dict[int, Slice]]) -> None:
    to = race.best(race.baseline)
    if to is None or to.rate is None:
        return
    base, sign = race.entries.index(to), 1 if race.shows == "speed" else -1
    for number, entry in enumerate(race.entries):
        if entry.rate is None:
            continue
        entry.ratio = (entry.rate / to.rate) ** sign
        rounds = [
            ((found[number].work / found[number].seconds) / (found[base].work / found[base].seconds)) ** sign
            for found in slices
            if number in found and base in found and found[base].work and found[number].work
        ]
        if len(rounds) > 1:
            entry.low, _, entry.high = quantiles(rounds, n=4, method="inclusive")
