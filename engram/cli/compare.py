"""`engram compare RUN RUN … [SETTING=VALUE …] [--json]`: test policies on the same episodes."""

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from engram.cli.arguments import ArgumentParser, add_trust_option
from engram.config.evaluation import EvalSettings, RunRequest, load_request
from engram.display.formatting import estimate_cells, interval, number, plural
from engram.settings import UserError

DESCRIPTION = """Plays the same episodes with the policies of several runs: each episode has its own environment,
with the same seed for every policy. Prints returns, and for each pair of policies the mean difference with its 95%
interval and the p-value of a paired test (random sign flips, adjusted for the number of pairs by Holm's method)."""

SETTINGS = """settings and their defaults:
  runs_dir=runs        the directory that holds the runs
  checkpoint=latest    or best
  episodes=100         of each policy
  greedy=false         true: the most likely action; false: sampled
  seed=…               of the episodes, as in `engram eval`
  device=auto          auto, cpu, cuda or mps
  env=CHOICE           a different environment for all of them; env.SETTING=VALUE likewise

examples:
  engram compare fast_tmaze_seed-1 fast_tmaze_seed-2
  engram compare small large episodes=500 greedy=true --json"""

SIGNIFICANT = 0.05


def main(argv: Sequence[str]) -> int:
    usage = "engram compare RUN RUN … [SETTING=VALUE …] [--json] [--trust]"
    parser = ArgumentParser(prog="engram compare", usage=usage, description=DESCRIPTION, epilog=SETTINGS)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_trust_option(parser)
    options, arguments = parser.parse_settings(argv)
    requests = _requests(arguments, options.trust)
    result = _play(requests)
    if options.json:
        print(json.dumps(result))
    else:
        _show(result)
    return 0


def _requests(arguments: Sequence[str], trust: bool) -> dict[str, RunRequest[EvalSettings]]:
    runs = [each for each in arguments if "=" not in each]
    runs += [name for each in arguments if each.startswith("run=") for name in each.removeprefix("run=").split(",")]
    others = [each for each in arguments if "=" in each and not each.startswith("run=")]
    if len(set(runs)) < 2:
        raise UserError("compare: give the names of two runs or more: engram compare RUN RUN")
    requests = {}
    for run in dict.fromkeys(runs):
        requests[run] = load_request([*others, f"run={run}"], EvalSettings, trust)
    first = next(iter(requests.values())).run
    for name, request in requests.items():
        if request.run.env != first.env:
            raise UserError(
                f"compare: {name} was trained in a different environment than {first.run}: choose one for all with "
                "env=CHOICE (and env.SETTING=VALUE)"
            )
    return requests


def _play(requests: dict[str, RunRequest[EvalSettings]]) -> dict[str, Any]:
    # Imported here: torch takes seconds, and a mistyped option should be reported at once.
    from engram.api.evaluate import load_requested_agent
    from engram.training.evaluate import evaluate
    from engram.training.statistics import compare_pairs

    evaluations = {}
    for name, request in requests.items():
        _, settings, run = request
        print(f"playing {plural(settings.episodes, 'episode')} with {name}", file=sys.stderr)
        agent, _ = load_requested_agent(request)
        evaluations[name] = evaluate(
            agent,
            run.env,
            settings.episodes,
            greedy=settings.greedy,
            seed=settings.seed,
            num_envs=settings.episodes,  # one environment for each episode: the same seeds for every policy
            num_workers=settings.num_workers,
            memory=run.trainer.memory,
            step_timeout=run.trainer.worker_timeout,
        )
    pairs = compare_pairs({name: evaluation.episode_returns for name, evaluation in evaluations.items()})
    return {
        "episodes": next(iter(requests.values())).settings.episodes,
        "runs": {name: evaluation.returns._asdict() for name, evaluation in evaluations.items()},
        "pairs": [pair._asdict() | {"difference": pair.difference._asdict()} for pair in pairs],
    }


def _show(result: dict[str, Any]) -> None:
    console, grid = Console(), Table(box=None, pad_edge=False)
    for name in ("run", "return", "95% interval", "std"):
        grid.add_column(name, justify="left" if name == "run" else "right")
    for name, value in result["runs"].items():
        grid.add_row(Text(name), *estimate_cells(value))
    console.print(Text(f"the same {plural(result['episodes'], 'episode')} for each\n"), grid, sep="\n")
    console.print()
    for pair in result["pairs"]:
        console.print(Text(sentence(pair)))


def sentence(pair: dict[str, Any]) -> str:
    """The result of a comparison in words."""
    value, p, size = pair["difference"], pair["p"], abs(pair["difference"]["mean"])
    if value["mean"] >= 0:
        better, worse, sign = pair["second"], pair["first"], 1
    else:
        better, worse, sign = pair["first"], pair["second"], -1
    bounds = ""
    if value["low"] is not None:
        bounds = f", 95% interval {interval(*sorted(sign * bound for bound in (value['low'], value['high'])))}"
    if p < SIGNIFICANT:
        return f"{better} is better than {worse} by {number(size)}{bounds} (p = {p:.2g})"
    return f"{better} and {worse} differ by {number(size)}{bounds}: that may be chance (p = {p:.2g})"
