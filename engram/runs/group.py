"""A group of runs: settings with several values, `engram train seed=1,2,3`. Each combination of values is one run."""

import re
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from engram.config.load import load
from engram.config.run import RunSettings
from engram.cores import available_cores
from engram.display.formatting import count, estimate_cells, plural
from engram.env.registry import adapter_path, make_spec
from engram.runs.pool import RunPool, Train
from engram.runs.state import is_finished, read_run
from engram.settings import SettingsError, UserError
from engram.training.launch import rank_info
from engram.training.statistics import Estimate, estimate

OPENING, CLOSING, QUOTES = "[{(", "]})", "'\""
LONGEST_NAME = 100
SEED = "seed"


class Member(NamedTuple):
    """One run of a group."""

    settings: RunSettings
    overrides: list[str]  # its settings as on a command line
    values: dict[str, str]  # its values of the settings that have several


class GroupRow(NamedTuple):
    """The runs of a group that differ by their seed only."""

    values: dict[str, str]
    runs: int
    steps: int  # of the run with the fewest
    returns: Estimate | None


def expand(overrides: Sequence[str], trust: bool = False) -> list[Member] | None:
    """The runs of a command line, or None if no setting has several values. Raises with the mistakes of all runs."""
    texts = {override.partition("=")[0]: override.partition("=")[2] for override in overrides}  # the last one counts
    several = {name: values for name, text in texts.items() if len(values := split_values(text)) > 1}
    if not several:
        return None
    for name, values in several.items():
        if not all(values):
            raise UserError(f"{name}: {texts[name]} has an empty value: write {name}=A,B without spaces")
    if "run" in several:
        raise UserError("run: give a group one name: each of its runs adds its own values to it")
    fixed = [override for override in overrides if override.partition("=")[0] not in several]
    combinations = [dict(zip(several, values, strict=True)) for values in product(*several.values())]
    return _members(fixed, combinations, trust)


def split_values(text: str) -> list[str]:
    """Split at commas outside of brackets and quotes; a backslash escapes a comma. Repeated values count once.

    >>> split_values("1,2,[3,4],'5,6'")
    ['1', '2', '[3,4]', "'5,6'"]
    """
    parts, depth, quote, escaped = [""], 0, "", False
    for character in text:
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif quote:
            quote = "" if character == quote else quote
        elif character in QUOTES:
            quote = character
        elif character in OPENING or character in CLOSING:
            depth += 1 if character in OPENING else -1
        elif character == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += character
    return list(dict.fromkeys(part.strip() for part in parts))


def train_group(members: Sequence[Member], train: Train) -> int:
    """Train the runs of a group, as many at a time as there are cores, and print their table. Returns the exit code."""
    if rank_info().size > 1:
        raise UserError("train: several values cannot be trained under torchrun: give one value of each setting")
    for env in {repr(member.settings.env): member.settings.env for member in members}.values():
        make_spec(env)  # an environment that cannot be made leaves no directory behind
    parallel = min(len(members), available_cores())
    say(f"{plural(len(members), 'run')}, {parallel} at a time, one thread each")
    failed = _train_unfinished(members, train, parallel)
    Console().print(group_table(summarise(members)))
    if failed:
        say(f"{plural(failed, 'run')} failed; the same command tries again and resumes what is unfinished")
    return 1 if failed else 0


def with_no_workers(overrides: Sequence[str]) -> list[str]:
    """A command line without worker processes, unless it asks for them: parallel runs use the cores already."""
    given = any(override.startswith("trainer.num_workers=") for override in overrides)
    return [*overrides] if given else [*overrides, "trainer.num_workers=0"]


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


def group_table(rows: Sequence[GroupRow]) -> Table:
    names = [*dict.fromkeys(name for row in rows for name in row.values)]
    grid = Table(box=None, pad_edge=False)
    for name in [*names, "runs", "steps", "return", "95% interval", "std"]:
        grid.add_column(name, justify="left" if name in names else "right")
    for row in rows:
        cells = estimate_cells(None if row.returns is None else row.returns._asdict())
        grid.add_row(*(row.values.get(name, "") for name in names), str(row.runs), count(row.steps), *cells)
    return grid


def say(text: str) -> None:
    print(text, flush=True)


def _train_unfinished(members: Sequence[Member], train: Train, parallel: int) -> int:
    """Train what is not finished, `parallel` runs at a time. Returns how many failed."""
    waiting = [member for member in members if not is_finished(member.settings)]
    if skipped := len(members) - len(waiting):
        say(f"{skipped} of {len(members)} runs are finished already")
    done, failed, preload = skipped, 0, sorted({adapter_path(member.settings.env.kind) for member in waiting})
    with RunPool(train, parallel, preload) as pool:
        while waiting or pool.running:
            while waiting and pool.free:
                member = waiting.pop(0)
                say(f"{member.settings.run}: started")
                pool.start(member.settings.run, with_no_workers(member.overrides))
            for ended in pool.finished(timeout=1.0):
                done += 1
                directory = next(m.settings.directory for m in members if m.settings.run == ended.name)
                if ended.code:
                    failed += 1
                    say(f"{ended.name}: failed after {ended.seconds:.0f} s ({done} of {len(members)})\n{ended.output}")
                    continue
                mean = read_run(directory).mean_return
                shown = "" if mean is None else f", return {mean:.4g}"
                say(f"{ended.name}: finished in {ended.seconds:.0f} s{shown} ({done} of {len(members)})")
    return failed


def _members(fixed: list[str], combinations: list[dict[str, str]], trust: bool) -> list[Member]:
    members, problems = [], []
    names: set[str] = set()
    for values in combinations:
        overrides = [*fixed, *(f"{name}={value}" for name, value in values.items())]
        try:
            run = _member_name(load(overrides, trust).run, values, names)
            names.add(run)
            overrides = [*(override for override in overrides if not override.startswith("run=")), f"run={run}"]
            members.append(Member(load(overrides, trust), overrides, values))
        except UserError as error:
            problems += str(error).splitlines()
    if problems:
        raise SettingsError(list(dict.fromkeys(problems)))
    return members


def _member_name(base: str, values: dict[str, str], taken: set[str]) -> str:
    """`fast_tmaze_seed-1`: the last part of each setting's name and its value, in at most 100 characters."""
    short = {name: name.rpartition(".")[2] for name in values}
    if len(set(short.values())) < len(short):
        short = {name: name for name in values}
    labels = [f"{short[name]}-{re.sub(r'[^A-Za-z0-9._+-]+', '-', value).strip('-')}" for name, value in values.items()]
    name = "_".join([base, *labels])[:LONGEST_NAME]
    number = 2
    while name in taken:
        suffix = f"_{number}"
        name = name[: LONGEST_NAME - len(suffix)] + suffix
        number += 1
    return name
