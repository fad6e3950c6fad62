"""Prints an evaluation: a table of means with confidence intervals, and whether the return needs memory."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from engram.display.formatting import count, estimate_cells, plural, score

MINIMUM_EPISODES = 20  # a few equal episodes have a narrow interval by chance

EvalResult = Mapping[str, Any]  # as `engram eval --json` prints it


def show(result: EvalResult, console: Console | None = None) -> None:
    console = console or Console()
    console.print(Text(heading(result)), table(result), Text(verdict(result)), sep="\n")
    if result["masked_features"]:
        console.print(Text(f"Masked features, unknown to the policy: {', '.join(result['masked_features'])}."))


def heading(result: EvalResult) -> str:
    actions = "most likely actions" if result["greedy"] else "sampled actions"
    memory = ", without memory" if result["memory"] == "off" else ""
    return (
        f"{result['run']} on {result['env']}, {plural(result['episodes'], 'episode')}, {actions}{memory}, "
        f"after {count(result['steps'])} steps ({result['checkpoint']})\n"
    )


def table(result: EvalResult) -> Table:
    """A row for return, length and each statistic, and one for each agent if there are several."""
    grid = Table(box=None, pad_edge=False)
    for name in ("", "mean", "95% interval", "std"):
        grid.add_column(name, justify="left" if name == "" else "right")
    rows = {"return": result["return"], "length": result["length"], **result["stats"]}
    if len(result["agents"]) > 1:
        rows |= {f"return of agent {agent['agent']}": agent["return"] for agent in result["agents"]}
    for name, value in rows.items():
        grid.add_row(name, *estimate_cells(value))
    return grid


def verdict(result: EvalResult) -> str:
    """One sentence that compares the return with the memoryless ceiling, if that is known."""
    value, ceiling, goal = result["return"], result["memoryless_ceiling"], result["mean_return_goal"]
    at_best = "" if goal is None else f" The best possible is {score(goal)}."
    if ceiling is None:
        return f"\nReturn {score(value['mean'])}.{at_best}"
    if value["low"] is not None and value["low"] > ceiling and result["episodes"] >= MINIMUM_EPISODES:
        comparison = f"above what any policy without memory can reach ({score(ceiling)})."
    elif value["mean"] > ceiling:
        comparison = f"above what a policy without memory can reach ({score(ceiling)}), but that may be luck."
    else:
        comparison = f"not above what a policy without memory can reach ({score(ceiling)})."
    return f"\nReturn {score(value['mean'])}: {comparison}{at_best}"
