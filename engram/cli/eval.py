"""`engram eval run=NAME [SETTING=VALUE …] [--json]`: play whole episodes with a trained policy."""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from engram.cli.arguments import ArgumentParser, add_trust_option
from engram.config.evaluation import EvalSettings, load_request
from engram.display.formatting import count, estimate_cells, plural, score
from engram.training.settings import EVALUATION_SEED

DESCRIPTION = """Plays whole episodes with the policy of a run. Prints return, length and the environment's statistics,
each with the 95% confidence interval of its mean."""

SETTINGS = f"""settings and their defaults:
  run=NAME             the run, or the path of its directory
  runs_dir=runs        the directory that holds the runs
  checkpoint=latest    or best, or the path of a checkpoint
  episodes=100         whole episodes, divided evenly among the environments
  greedy=false         true: the most likely action; false: sampled, as in training
  seed={EVALUATION_SEED}       of the episodes; the default is the same for every run and used by no training
  num_envs=32          environments stepped in parallel
  num_workers=0        worker processes that step them; 0: step them in this process
  device=auto          auto, cpu, cuda or mps
  env.SETTING=VALUE    change the run's environment
  env=CHOICE           a different environment: features are matched by name, unknown ones are masked

examples:
  engram eval run=fast_tmaze
  engram eval run=fast_tmaze checkpoint=best greedy=true episodes=500 --json"""

MINIMUM_EPISODES = 20  # a few equal episodes have a narrow interval by chance

EvalResult = Mapping[str, Any]  # as `engram eval --json` prints it


def main(argv: Sequence[str]) -> int:
    usage = "engram eval run=NAME [SETTING=VALUE …] [--json] [--trust]"
    parser = ArgumentParser(prog="engram eval", usage=usage, description=DESCRIPTION, epilog=SETTINGS)
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object, with return.mean, return.low and return.high"
    )
    add_trust_option(parser)
    options, overrides = parser.parse_settings(argv)
    request = load_request(overrides, EvalSettings, options.trust)
    # Imported here: torch takes seconds, and a mistyped option should be reported at once.
    from engram.api.evaluate import play

    if options.json:
        with _stdout_to_stderr():
            result = play(request).about
        print(json.dumps(result))
    else:
        show(play(request).about)
    return 0


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Send what simulators and libraries print, also in workers, to standard error: standard output is for the JSON."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def show(result: EvalResult, console: Console | None = None) -> None:
    """A table of means with confidence intervals, and whether the return needs memory."""
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
