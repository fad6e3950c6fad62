"""The report of a soak: injected faults, rounds, memory and broken promises, as tables and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

BLOCKS = 20  # equal parts of the epochs; the line is fitted to their means
STUDENT_95 = 2.101  # quantile of Student's t for 18 degrees of freedom: 20 blocks, 2 coefficients
MIN_UPDATES = 6000  # to judge a slope: in fewer, caches are still filling
MAX_SLOPE = 200.0  # bytes per update


@dataclass(frozen=True)
class Slope:
    """Growth of the process's memory, in bytes per update, with its 95% interval."""

    bytes_per_update: float
    low: float
    high: float
    updates: int

    @property
    def grows(self) -> bool:
        """Whether a leak is beyond doubt."""
        return self.updates >= MIN_UPDATES and self.low > MAX_SLOPE

    def __str__(self) -> str:
        short = "" if self.updates >= MIN_UPDATES else ", too few to judge"
        return (
            f"{self.bytes_per_update:,.0f} bytes per update ({self.low:,.0f} to {self.high:,.0f}; "
            f"{self.updates:,} updates{short})"
        )


@dataclass(frozen=True)
class Injection:
    round: int
    fault: str
    seconds: float  # since its process began
    epoch: int
    code: int | None  # exit code of the program; None: it trained on
    lost_steps: int  # of whole epochs
    problem: str | None

    def __str__(self) -> str:
        outcome = "trained on" if self.code is None else f"exit code {self.code}, {self.lost_steps} steps lost"
        return f"round {self.round}, epoch {self.epoch}: {self.fault}: {self.problem or outcome}"


@dataclass
class Round:
    number: int
    kind: str
    faults: int
    seconds: float
    mean_return: float | None
    undisturbed_return: float | None
    difference: str | None = None  # from the undisturbed run; exact rounds only
    restarts: int = 0
    memory: Slope | None = None

    def __str__(self) -> str:
        if self.kind == "exact":
            outcome = self.difference or "equal to the undisturbed run to the bit"
        else:
            outcome = f"return {self.mean_return}, undisturbed {self.undisturbed_return}; memory {self.memory}"
        return f"round {self.number} ({self.kind}) after {self.faults} faults: {outcome}"


@dataclass
class Report:
    injections: list[Injection] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    broken_promises: list[str] = field(default_factory=list)
    orphans: int = 0
    disk: str = ""  # how a full disk is simulated

    def all_broken_promises(self) -> list[str]:
        orphans = [f"{self.orphans} processes were left behind"] if self.orphans else []
        return [*self.broken_promises, *orphans]

    def by_fault(self) -> dict[str, dict[str, int]]:
        names = sorted({each.fault for each in self.injections})
        counts = {}
        for name in names:
            own = [each for each in self.injections if each.fault == name]
            survived, lost = sum(not each.problem for each in own), sum(each.lost_steps for each in own)
            counts[name] = {"injected": len(own), "survived": survived, "steps_lost": lost}
        return counts

    def to_json(self) -> dict[str, Any]:
        faults = self.by_fault().values()
        return {
            "injected": len(self.injections),
            "survived": sum(each["survived"] for each in faults),
            "steps_lost": sum(each["steps_lost"] for each in faults),
            "orphans": self.orphans,
            "full_disk": self.disk,
            "by_fault": self.by_fault(),
            "broken": self.all_broken_promises(),
            "rounds": [asdict(each) for each in self.rounds],
            "injections": [asdict(each) for each in self.injections],
        }


def memory_slope(megabytes: Sequence[float], updates_per_epoch: int) -> Slope | None:
    """A linear fit to means of blocks, without the first quarter; None if there are too few epochs."""
    kept = np.asarray(megabytes[len(megabytes) // 4 :], np.float64) * 2**20
    size = len(kept) // BLOCKS
    if size < 1:
        return None
    y = kept[: size * BLOCKS].reshape(BLOCKS, size).mean(1)
    x = np.arange(BLOCKS) * size * updates_per_epoch
    centred = x - x.mean()
    slope = float(centred @ y / (centred @ centred))
    residuals = y - y.mean() - slope * centred
    error = float(np.sqrt(residuals @ residuals / (BLOCKS - 2) / (centred @ centred)))
    half = STUDENT_95 * error
    return Slope(slope, slope - half, slope + half, len(megabytes) * updates_per_epoch)


def show(report: Report, console: Console) -> None:
    table = Table(title="faults", title_justify="left", title_style="bold")
    for name in ("", "injected", "survived", "steps lost"):
        table.add_column(name, justify="right" if name else "left")
    for name, counts in report.by_fault().items():
        table.add_row(name, *(f"{counts[key]:,}" for key in ("injected", "survived", "steps_lost")))
    console.print(table)
    rounds = Table(title="rounds", title_justify="left", title_style="bold")
    for name in ("", "faults", "weights and metrics", "return", "undisturbed", "memory"):
        rounds.add_column(name, justify="right" if name in ("faults", "return", "undisturbed") else "left")
    for each in report.rounds:
        equal = (each.difference or "equal to the bit") if each.kind == "exact" else f"{each.restarts} restarts"
        returns = (_number(each.mean_return), _number(each.undisturbed_return))
        rounds.add_row(f"{each.number} {each.kind}", str(each.faults), equal, *returns, str(each.memory or ""))
    console.print(rounds)
    console.print(f"orphans: {report.orphans}; full disk: {report.disk}")
    broken = report.all_broken_promises()
    console.print("\n".join(["Broken promises:", *broken]) if broken else "Every promise held.", markup=False)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
