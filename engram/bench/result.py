"""A result: what was measured, on which machine and when, as one dated JSON file. One shape for all measurements."""

import json
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from engram.bench.fit import Fit
from engram.bench.machine import describe
from engram.bench.race import Race

SCHEMA = 1


@dataclass
class Bar:
    """A promise about a ratio, and what became of it."""

    what: str
    ratio: float | None
    at_least: float | None = None
    at_most: float | None = None

    @property
    def met(self) -> bool | None:
        """None: nothing was measured."""
        if self.ratio is None:
            return None
        return (self.at_least is None or self.ratio >= self.at_least) and (
            self.at_most is None or self.ratio <= self.at_most
        )


@dataclass
class Result:
    verb: str
    options: dict[str, Any]
    races: list[Race] = field(default_factory=list)
    fits: list[Fit] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=describe)
    date: str = field(default_factory=lambda: datetime.now().astimezone().isoformat(timespec="seconds"))

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "verb": self.verb,
            "date": self.date,
            "machine": self.machine,
            "options": self.options,
            "races": [asdict(race) for race in self.races],
            "fits": [asdict(fit) for fit in self.fits],
            "bars": [{**asdict(bar), "met": bar.met} for bar in self.bars],
        }


def write(result: Result, directory: Path) -> Path:
    path = new_file(directory, result.verb, result.date)
    path.write_text(json.dumps(result.to_json(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return path


def new_file(directory: Path, verb: str, date: str) -> Path:
    """`peers-2026-05-01.json`; a second one of the same day gets a number, so that nothing is lost."""
    directory.mkdir(parents=True, exist_ok=True)
    stem = f"{verb}-{date[:10]}"
    path, number = directory / f"{stem}.json", 2
    while path.exists():
        path, number = directory / f"{stem}-{number}.json", number + 1
    return path
