"""Options of measurements. Light to import: they are read before torch is loaded."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

DEFAULT_VENVS = Path("~/.cache/engram/peers")


@dataclass(frozen=True)
class Options:
    """Every verb uses some of them."""

    rounds: int = 15
    seconds: float = 0.2  # of a slice
    threads: list[int] = field(default_factory=lambda: [1, 2])  # of torch; the best of them counts
    rows: list[int] = field(default_factory=lambda: [256, 1024])
    steps: int = 64
    hidden: int = 128
    layers: int = 2
    resets: float = 0.02  # chance of an episode start, per row and step
    tasks: list[str] = field(default_factory=list)  # none: all
    policies: list[str] = field(default_factory=list)
    peers: list[str] = field(default_factory=list)
    epochs: int = 200  # of the run that must not grow
    learn: int = 0  # steps after which the return is compared; 0: only speed
    install: bool = False
    venvs: Path = DEFAULT_VENVS

    def to_json(self) -> dict[str, Any]:
        return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}

    def wants(self, task: str) -> bool:
        return not self.tasks or task in self.tasks
