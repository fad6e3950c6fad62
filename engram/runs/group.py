"""Trains a group of runs and summarises it: skips finished ones and resumes the others."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from engram.config.run_group import Member
from engram.env.registry import adapter_path
from engram.runs.pool import RunPool, Train
from engram.runs.state import is_finished, read_run
from engram.training.estimate import Estimate, estimate

SEED = "seed"


class Failure(NamedTuple):
    run: str
    output: str


class GroupRow(NamedTuple):
    """The runs of a group that differ by their seed only."""

    values: dict[str, str]
    runs: int
    steps: int  # of the run that has the fewest
    returns: Estimate | None


def train_group(members: Sequence[Member], train: Train, parallel: int, say: Callable[[str], None]) -> list[Failure]:
    """Train what is not finished, `parallel` runs at a time. Returns those that failed."""
    waiting = [member for member in members if not is_finished(member.settings)]
    if skipped := len(members) - len(waiting):
        say(f"{skipped} of {len(members)} runs are finished already")
    failures: list[Failure] = []
    done, preload = skipped, sorted({adapter_path(member.settings.env.kind) for member in waiting})
    with RunPool(train, parallel, preload) as pool:
        while waiting or pool.running:
            while waiting and pool.free:
                member = waiting.pop(0)
                say(f"{member.settings.run}: started")
                pool.start(member.settings.run, with_no_workers(member.words))
            for ended in pool.finished(timeout=1.0):
                done += 1
                directory = next(m.settings.directory for m in members if m.settings.run == ended.name)
                if ended.code:
                    failures.append(Failure(ended.name, ended.output))
                    say(f"{ended.name}: failed after {ended.seconds:.0f} s ({done} of {len(members)})\n{ended.output}")
                    continue
                mean = read_run(directory).mean_return
                shown = "" if mean is None else f", return {mean:.4g}"
                say(f"{ended.name}: finished in {ended.seconds:.0f} s{shown} ({done} of {len(members)})")
    return failures


def with_no_workers(words: Sequence[str]) -> list[str]:
    """A command line for one of several runs on a machine: the other runs use the remaining cores."""
    given = any(word.startswith("trainer.num_workers=") for word in words)
    return [*words] if given else [*words, "trainer.num_workers=0"]


def summarise(members: Sequence[Member]) -> list[GroupRow]:
    """One row for each combination of values but the seed, with the interval over its runs."""
    groups: dict[tuple[tuple[str, str], ...], list[Member]] = {}
    for member in members:
        key = tuple((name, value) for name, value in member.values.items() if name != SEED)
        groups.setdefault(key, []).append(member)
    rows = []
    for key, group in groups.items():
        states = [read_run(member.settings.directory) for member in group]
        returns = [np.nan if state.mean_return is None else state.mean_return for state in states]
        rows.append(GroupRow(dict(key), len(group), min(state.steps for state in states), estimate(np.array(returns))))
    return rows
