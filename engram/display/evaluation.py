"""An evaluation as people read it: a table of means and how well they are known, and whether they take memory."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from engram.display.figures import MISSING, count, number, plural, score

ENOUGH = 20  # episodes; fewer that happen to be alike would seem to be sure of their mean

Result = Mapping[str, Any]  # as `engram eval --json` prints it


def show(result: Result, console: Console | None = None) -> None:
    console = console or Console()
    console.print(Text(heading(result)), table(result), Text(verdict(result)), sep="\n")
    if result["masked_features"]:
        console.print(Text(f"Masked, for the policy does not know them: {', '.join(result['masked_features'])}."))


def heading(result: Result) -> str:
    actions = "most likely actions" if result["greedy"] else "actions drawn"
    memory = ", without memory" if result["memory"] == "off" else ""
    return (
        f"{result['run']} on {result['env']}, {plural(result['episodes'], 'episode')}, {actions}{memory}, "
        f"after {count(result['steps'])} steps ({result['checkpoint']})\n"
    )


def table(result: Result) -> Table:
    """A row for return and length, for each statistic, and for each agent where there are several."""
    grid = Table(box=None, pad_edge=False)
    for name in ("", "mean", "95% interval", "std"):
        grid.add_column(name, justify="left" if name == "" else "right")
    rows = {"return": result["return"], "length": result["length"], **result["stats"]}
    if len(result["agents"]) > 1:
        rows |= {f"return of agent {agent['agent']}": agent["return"] for agent in result["agents"]}
    for name, value in rows.items():
        grid.add_row(name, *_figures(value))
    return grid


def verdict(result: Result) -> str:
    """The return beside what a policy without memory can reach, where that is known, in a sentence."""
    value, ceiling, goal = result["return"], result["memoryless_ceiling"], result["mean_return_goal"]
    at_best = "" if goal is None else f" The best possible is {score(goal)}."
    if ceiling is None:
        return f"\nReturn {score(value['mean'])}.{at_best}"
    if value["low"] is not None and value["low"] > ceiling and result["episodes"] >= ENOUGH:
        says = f"above what any policy without memory can reach ({score(ceiling)})."
    elif value["mean"] > ceiling:
        says = f"above what a policy without memory can reach ({score(ceiling)}), but that may be luck."
    else:
        says = f"not above what a policy without memory can reach ({score(ceiling)})."
    return f"\nReturn {score(value['mean'])}: {says}{at_best}"


def _figures(value: Mapping[str, float | None] | None) -> list[str]:
    if value is None:
        return [MISSING] * 3
    interval = MISSING if value["low"] is None else f"{number(value['low'])} to {number(value['high'])}"
    return [number(value["mean"]), interval, number(value["std"])]
