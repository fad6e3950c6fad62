"""Whether `agent=X` (YAML) and `py_agent=X` (Python) learn the same: a permutation test over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from rich.table import Table

from engram.bench.learning.result import WIDTH, Row
from engram.bench.result import wide_console

ALPHA = 0.05
MAX_SPLITS = 20_000  # of more, as with over 8 runs each, every n-th is used


@dataclass(frozen=True)
class Comparison:
    """The final returns of both forms of a policy on a task, and the probability of such a difference by chance."""

    task: str
    policy: str
    which: str  # greedy or sampled
    yaml: list[float]
    python: list[float]
    p: float

    @property
    def differ(self) -> bool:
        return self.p < ALPHA


def both_forms(policy: str) -> list[tuple[str, ...]]:
    """The settings that choose the YAML and the Python form of a policy."""
    return [(f"agent={policy}",), (f"py_agent={policy}",)]


def compare(rows: Sequence[Row]) -> list[Comparison]:
    """One comparison per task, policy, and way to act, where both forms have finished runs."""
    found = []
    by_name = {(row.task, row.variant): row for row in rows}
    for task, variant in by_name:
        policy = variant.partition(" ")[0].removeprefix("agent=")
        other = by_name.get((task, f"py_{variant}"))
        if variant.startswith("agent=") and other is not None:
            for which in ("greedy", "sampled"):
                yaml, python = ([getattr(run, which) for run in row.runs] for row in (by_name[task, variant], other))
                found.append(Comparison(task, policy, which, yaml, python, permutation_test(yaml, python)))
    return found


def permutation_test(first: Sequence[float], second: Sequence[float]) -> float:
    """The fraction of all splits into two groups of these sizes whose means differ at least as much."""
    values, size = [*first, *second], len(first)
    observed = abs(fmean(first) - fmean(second))
    total, tolerance = sum(values), 1e-9 * max(1.0, *map(abs, values))
    splits = list(combinations(values, size))
    splits = splits[:: max(1, len(splits) // MAX_SPLITS)]
    differences = [abs(fmean(split) - (total - sum(split)) / len(second)) for split in splits]
    return sum(difference >= observed - tolerance for difference in differences) / len(differences)


def show(comparisons: Sequence[Comparison]) -> None:
    table = Table(title="parity", caption="p: probability of such a difference by chance, by a permutation test")
    for name in ("task", "policy", "actions", "agent=", "py_agent=", "p", ""):
        table.add_column(name, justify="left" if name in ("task", "policy", "actions") else "right")
    for each in comparisons:
        verdict = "differ" if each.differ else "no difference found"
        means = (f"{fmean(values):.4g}" for values in (each.yaml, each.python))
        table.add_row(each.task, each.policy, each.which, *means, f"{each.p:.3f}", verdict)
    wide_console(WIDTH).print(table)
