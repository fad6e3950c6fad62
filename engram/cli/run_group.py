"""A group of runs from one command line, `engram train seed=1,2,3`, and its table."""

from collections.abc import Sequence
from functools import partial

from rich.console import Console
from rich.table import Table

from engram.config.run_group import Member
from engram.cores import available_cores
from engram.display.formatting import MISSING, count, number, plural
from engram.env.registry import make_spec
from engram.runs.group import GroupRow, summarise, train_group
from engram.settings import UserError
from engram.training.launch import rank_info


def train_members(members: Sequence[Member], trust: bool) -> int:
    """Train the runs of a group, as many at a time as there are cores, and print their table."""
    if rank_info().size > 1:
        raise UserError("train: several values cannot be trained under torchrun: give one value of each setting")
    for env in {repr(member.settings.env): member.settings.env for member in members}.values():
        make_spec(env)  # an environment that cannot be made leaves no directory behind
    parallel = min(len(members), available_cores())
    say(f"{plural(len(members), 'run')}, {parallel} at a time, one thread each")
    failures = train_group(members, partial(train_one, trust), parallel, say)
    Console().print(table(summarise(members)))
    if failures:
        say(f"{plural(len(failures), 'run')} failed; the same command tries again and resumes what is unfinished")
    return 1 if failures else 0


def train_one(trust: bool, words: list[str]) -> int:
    """One run, in its own process."""
    from engram.cli.main import main

    return main(["train", *words, *(["--trust"] if trust else [])])


def table(rows: Sequence[GroupRow]) -> Table:
    names = [*dict.fromkeys(name for row in rows for name in row.values)]
    grid = Table(box=None, pad_edge=False)
    for name in [*names, "runs", "steps", "return", "95% interval", "std"]:
        grid.add_column(name, justify="left" if name in names else "right")
    for row in rows:
        grid.add_row(*(row.values.get(name, "") for name in names), str(row.runs), count(row.steps), *_cells(row))
    return grid


def _cells(row: GroupRow) -> list[str]:
    value = row.returns
    if value is None:
        return [MISSING] * 3
    interval = MISSING if value.low is None else f"{number(value.low)} to {number(value.high)}"
    return [number(value.mean), interval, number(value.std)]


def say(text: str) -> None:
    print(text, flush=True)
