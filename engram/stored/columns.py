"""Columns: the metrics of a run by name, in a bounded number of buckets, however long the run is."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from engram.stored.metrics import MetricsReader

BUCKETS = 512
MOST_NAMES = 1000  # of metrics; a run has about 40, and some hundred with weight metrics

LARGEST = 1e100  # beyond it, sums could overflow

Stat = list[float]  # count, sum, minimum, maximum


class Column(NamedTuple):
    """A metric over the buckets that have it, [N] each."""

    steps: np.ndarray  # at the end of the bucket
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    epochs: np.ndarray  # in the bucket that have it


class Columns:
    """Collects records. When there are too many buckets, neighbours are merged, so that all span the same epochs."""

    def __init__(self, records: Iterable[Mapping[str, Any]] = (), limit: int = BUCKETS) -> None:
        self.last: Mapping[str, Any] = {}
        self.epochs = 0
        self.not_finite: dict[str, int] = {}  # metric -> the first epoch in which it was NaN or infinite
        self._limit = limit
        self._size = 1  # records in a whole bucket
        self._in_last = 0  # records in the last one
        self._steps: list[float] = []
        self._buckets: list[dict[str, Stat]] = []
        self._names: dict[str, None] = {}
        for record in records:
            self.add(record)

    def add(self, record: Mapping[str, Any]) -> None:
        steps: Any = record.get("steps")
        if not is_number(steps) or not math.isfinite(steps):
            return
        if not self._buckets or self._in_last == self._size:
            self._make_room()
            self._buckets.append({})
            self._steps.append(0.0)
            self._in_last = 0
        self._steps[-1] = float(steps)
        self._in_last += 1
        self.epochs += 1
        self.last = record
        self._add_values(record)

    @property
    def names(self) -> list[str]:
        """All metrics, in the order in which they first appeared."""
        return list(self._names)

    @property
    def merged(self) -> bool:
        """Whether buckets hold several epochs."""
        return self._size > 1

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> Column:
        """The values of a metric; empty if no record has it."""
        found = [
            (steps, bucket[name]) for steps, bucket in zip(self._steps, self._buckets, strict=True) if name in bucket
        ]
        steps = np.array([steps for steps, _ in found], np.float64)
        count, total, low, high = np.array([stat for _, stat in found], np.float64).reshape(-1, 4).T
        return Column(steps, total / np.maximum(count, 1), low, high, count)

    def _add_values(self, record: Mapping[str, Any]) -> None:
        bucket = self._buckets[-1]
        for name, value in record.items():
            if not is_number(value) or (name not in self._names and len(self._names) >= MOST_NAMES):
                continue
            self._names.setdefault(name)
            if not math.isfinite(value) or abs(value) > LARGEST:
                self.not_finite.setdefault(name, self._epoch())
            elif stat := bucket.get(name):
                _merge(stat, [1.0, value, value, value])
            else:
                bucket[name] = [1.0, value, value, value]

    def _epoch(self) -> int:
        epoch = self.last.get("epoch")
        return epoch if isinstance(epoch, int) else self.epochs

    def _make_room(self) -> None:
        if len(self._buckets) < self._limit:
            return
        for first, second in zip(self._buckets[::2], self._buckets[1::2], strict=False):
            for name, stat in second.items():
                if name in first:
                    _merge(first[name], stat)
                else:
                    first[name] = stat
        self._buckets = self._buckets[::2]
        self._steps = self._steps[1::2]
        self._size *= 2


def read_columns(directory: Path, limit: int = BUCKETS) -> Columns:
    """The metrics of a run so far."""
    return Columns(MetricsReader(directory).new_records(), limit)


def _merge(stat: Stat, other: Stat) -> None:
    stat[0] += other[0]
    stat[1] += other[1]
    stat[2] = min(stat[2], other[2])
    stat[3] = max(stat[3], other[3])


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value of a record can be computed with; NaN and infinity can."""
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST)
