"""Reads the metrics of a run: one record per epoch, as a whole or as they are written."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engram.settings import CONTROL
from engram.stored.files import MEGABYTE, UnreadableError, open_file, parse_json

METRICS_FILE = "metrics.jsonl"
LIMIT = 1024 * MEGABYTE  # a record takes about 1.5 kB: 700,000 epochs
LONGEST_LINE = 4 * MEGABYTE  # a longer one is not a record

Record = dict[str, Any]


def read_metrics(directory: Path) -> list[Record]:
    """The records so far. A line that is half written, or no record, is left out."""
    return list(MetricsReader(directory).new_records())


class MetricsReader:
    """Reads the records that were added since the last call."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._path = directory, directory / METRICS_FILE
        self._offset = 0
        self._last_line = b""  # ends at the offset

    def rewound(self) -> bool:
        """Whether records that were read are gone, as after a resume from a checkpoint. If so, reading starts over."""
        if not self._offset or self._still_there():
            return False
        self._offset, self._last_line = 0, b""
        return True

    def new_records(self) -> Iterator[Record]:
        """Whole lines only: one that is being written is left for the next call."""
        if not self._path.exists():
            return
        with open_file(self._path, LIMIT, inside=self._directory) as file:
            file.seek(self._offset)
            while line := file.readline(LONGEST_LINE):
                if not line.endswith(b"\n"):
                    if len(line) < LONGEST_LINE:
                        return
                    line = b""  # skip it piece by piece
                self._offset, self._last_line = file.tell(), line
                record = _parse(line, self._path)
                if isinstance(record, dict) and not CONTROL.search("".join(record)):
                    yield record

    def _still_there(self) -> bool:
        try:
            with open_file(self._path, LIMIT, inside=self._directory) as file:
                file.seek(self._offset - len(self._last_line))
                return file.read(len(self._last_line)) == self._last_line and file.tell() == self._offset
        except UnreadableError:
            return False


def _parse(line: bytes, path: Path) -> Any:
    try:
        return parse_json(line, str(path))
    except UnreadableError:
        return None
