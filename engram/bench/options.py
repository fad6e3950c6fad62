"""Options of the benchmarks. Imports no torch, so that a mistyped option fails at once."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Options:
    """Options of all benchmarks; each uses some of them."""

    rounds: int = 15
    seconds: float = 0.2  # per turn
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
