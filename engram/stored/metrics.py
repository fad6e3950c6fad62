"""Reads the metrics of a run: one record per epoch."""

from pathlib import Path
from typing import Any

from engram.stored.files import MEGABYTE, UnreadableError, parse_json, read_text

METRICS_FILE = "metrics.jsonl"
LIMIT = 1024 * MEGABYTE  # a record takes about 1.5 kB: 700,000 epochs


def read_metrics(directory: Path) -> list[dict[str, Any]]:
    """The records so far. A line that is half written, or no record, is left out."""
    path = directory / METRICS_FILE
    if not path.exists():
        return []
    lines = read_text(path, LIMIT, inside=directory).split("\n")[:-1]
    return [record for line in lines if isinstance(record := _parse(line, path), dict)]


def _parse(line: str, path: Path) -> Any:
    try:
        return parse_json(line, str(path))
    except UnreadableError:
        return None
