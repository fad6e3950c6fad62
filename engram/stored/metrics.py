"""Reads the metrics of a run: one record per epoch, or columns by name in a bounded number of buckets."""

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from engram.settings import CONTROL
from engram.stored.files import MEGABYTE, UnreadableError, open_file, parse_json

METRICS_FILE = "metrics.jsonl"
FILE_LIMIT = 1024 * MEGABYTE  # a record takes about 1.5 kB: 700,000 epochs
MAX_LINE = 4 * MEGABYTE  # a longer one is not a record
BUCKETS = 512  # of a column
MAX_NAMES = 1000  # of metrics; a run has about 40, and some hundred with weight metrics
MAX_VALUE = 1e100  # sums of larger values could overflow
EMPTY = (0.0, 0.0, math.inf, -math.inf)  # a bucket without values: count, sum, minimum, maximum

Record = dict[str, Any]


def read_metrics(directory: Path) -> list[Record]:
    """The records so far, without lines that are incomplete or invalid."""
    return list(MetricsReader(directory).new_records())


class MetricsReader:
    """Reads the records that were added since the last call."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._path = directory, directory / METRICS_FILE
        self._offset = 0
        self._last_line = b""  # ends at the offset

    def rewound(self) -> bool:
        """Whether records that were read are gone, as after a resume from a checkpoint: then reading starts over."""
        if not self._offset or self._still_there():
            return False
        self._offset, self._last_line = 0, b""
        return True

    def new_records(self) -> Iterator[Record]:
        """Whole lines only: one that is being written is left for the next call."""
        if not self._path.exists():
            return
        with open_file(self._path, FILE_LIMIT, inside=self._directory) as file:
            file.seek(self._offset)
            while line := file.readline(MAX_LINE):
                if not line.endswith(b"\n"):
                    if len(line) < MAX_LINE:
                        return
                    line = b""  # skip it piece by piece
                self._offset, self._last_line = file.tell(), line
                record = _parse(line, self._path)
                if isinstance(record, dict) and not CONTROL.search("".join(record)):
                    yield record

    def _still_there(self) -> bool:
        try:
            with open_file(self._path, FILE_LIMIT, inside=self._directory) as file:
                file.seek(self._offset - len(self._last_line))
                return file.read(len(self._last_line)) == self._last_line and file.tell() == self._offset
        except UnreadableError:
            return False


def _parse(line: bytes, path: Path) -> Any:
    try:
        return parse_json(line, str(path))
    except UnreadableError:
        return None


class Column(NamedTuple):
    """A metric over the buckets that have it, [N] each."""

    steps: np.ndarray  # at the end of the bucket
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    epochs: np.ndarray  # in the bucket that have it


class Columns:
    """The metrics of a run by name, in at most `limit` buckets. When they are full, neighbours are merged.

    The memory of a metric is allocated when it first appears, so that a long run does not look like a leak.
    """

    def __init__(self, records: Iterable[Mapping[str, Any]] = (), limit: int = BUCKETS) -> None:
        assert limit % 2 == 0
        self.last: Mapping[str, Any] = {}
        self.epochs = 0
        self.not_finite: dict[str, int] = {}  # metric -> the first epoch in which it was NaN or infinite
        self._limit = limit
        self._size = 1  # records in a full bucket
        self._in_last = 0  # records in the last bucket
        self._steps: list[float] = []  # at the end of each bucket
        self._stats: dict[str, array[float]] = {}  # metric -> count, sum, minimum, maximum of each possible bucket
        for record in records:
            self.add(record)

    def add(self, record: Mapping[str, Any]) -> None:
        steps: Any = record.get("steps")
        if not is_number(steps) or not math.isfinite(steps):
            return
        if not self._steps or self._in_last == self._size:
            if len(self._steps) == self._limit:
                self._merge_neighbours()
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
        return list(self._stats)

    @property
    def merged(self) -> bool:
        """Whether buckets hold several epochs."""
        return self._size > 1

    def __contains__(self, name: str) -> bool:
        return name in self._stats

    def __getitem__(self, name: str) -> Column:
        """The values of a metric; empty if no record has it."""
        count, total, low, high = _as_rows(self._stats.get(name, array("d")))[: len(self._steps)].T
        found = count > 0
        steps = np.array(self._steps[: len(found)], np.float64)
        return Column(steps[found], total[found] / count[found], low[found], high[found], count[found])

    def _add_values(self, record: Mapping[str, Any]) -> None:
        first = 4 * (len(self._steps) - 1)
        for name, value in record.items():
            if not is_number(value):
                continue
            stats = self._stats.get(name)
            if stats is None:
                if len(self._stats) >= MAX_NAMES:
                    continue
                stats = self._stats[name] = array("d", EMPTY * self._limit)
            if not math.isfinite(value) or abs(value) > MAX_VALUE:
                self.not_finite.setdefault(name, self._epoch())
                continue
            stats[first] += 1
            stats[first + 1] += value
            stats[first + 2] = min(stats[first + 2], value)
            stats[first + 3] = max(stats[first + 3], value)

    def _epoch(self) -> int:
        epoch = self.last.get("epoch")
        return epoch if isinstance(epoch, int) else self.epochs

    def _merge_neighbours(self) -> None:
        half = self._limit // 2
        for stats in self._stats.values():
            rows = _as_rows(stats)
            count, total, low, high = rows.reshape(half, 2, 4).transpose(2, 0, 1)
            rows[:half] = np.stack([count.sum(1), total.sum(1), low.min(1), high.max(1)], 1)
            rows[half:] = EMPTY
        self._steps = self._steps[1::2]
        self._size *= 2


def read_columns(directory: Path, limit: int = BUCKETS) -> Columns:
    """The metrics of a run so far."""
    return Columns(MetricsReader(directory).new_records(), limit)


def _as_rows(stats: "array[float]") -> np.ndarray:
    """A view, [buckets, 4]."""
    return np.frombuffer(stats).reshape(-1, 4)


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value of a record is a number, also NaN or infinity, and small enough for a float."""
    return isinstance(value, float) or (
        isinstance(value, int) and not isinstance(value, bool) and abs(value) < MAX_VALUE
    )
