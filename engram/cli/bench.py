"""Measure speed and learning on this machine: `engram bench core|env|policy|train|scale|learn|parity [OPTION …]`."""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from engram.agent.settings import POLICIES
from engram.bench.options import Options
from engram.cli import bench_learn
from engram.cli.arguments import ArgumentParser, names_from, positive_int
from engram.nearest import suggestion
from engram.settings import UserError

if TYPE_CHECKING:
    from engram.bench.result import BenchResult

OptionsType = TypeVar("OptionsType", bound=Options)
VERBS = {
    "core": "the LSTM core against torch.nn.LSTM: forward and backward, and one step of acting",
    "env": "VectorEnv against bare loops over the simulators, without workers and with two",
    "policy": "every policy, acting and learning",
    "train": "training from end to end, split by phase",
    "scale": "how time and memory grow with rows, steps, hidden size and the length of a run",
    "learn": "what is learned within published budgets, and how fast, over several seeds",
    "parity": "whether the YAML and the Python form of a policy learn the same",
}
TASKS = {
    "env": ("arena", "small", "tmaze", "navigation", "cartpole", "recall"),
    "train": ("arena", "cartpole", "tmaze"),
}
DEFAULTS: dict[str, dict[str, Any]] = {  # where a verb's defaults differ from those of Options
    "env": {"seconds": 0.3, "rounds": 15},
    "policy": {"rows": [384]},
    "train": {"seconds": 3.0, "rounds": 6},
    "scale": {"rows": [256], "rounds": 7},
}


def main(words: Sequence[str]) -> int:
    if not words or words[0] in ("--help", "-h"):
        print(_help())
        return 0
    verb, *rest = words
    if verb not in VERBS:
        raise UserError(
            f"engram bench: unknown benchmark '{verb}'{suggestion(verb, VERBS)} ({', '.join(VERBS)}; "
            'races against other systems: make bench ARGS="peers" in a clone)'
        )
    if verb in ("learn", "parity"):
        return bench_learn.main(rest) if verb == "learn" else bench_learn.parity(rest)
    arguments = _parser(verb).parse_args(rest)
    # Imported here: torch takes seconds to load, and a mistyped option should fail at once.
    from engram.bench import core, env, policy, scale, train

    benchmarks = {"core": core, "env": env, "policy": policy, "train": train, "scale": scale}
    options = options_from(arguments, Options)
    report(f"engram bench {verb}", arguments, lambda progress: benchmarks[verb].measure(options, progress))
    return 0


def benchmark_parser(program: str, description: str) -> ArgumentParser:
    """A parser with the options that all benchmarks share."""
    parser = ArgumentParser(prog=program, description=description)
    parser.add_argument("--rounds", type=positive_int, help="number of turns per contestant")
    parser.add_argument("--seconds", type=_nonnegative, help="length of a turn")
    parser.add_argument(
        "--threads", type=_positive_ints, help="torch threads, such as 1,2: the best counts", metavar="N,…"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write the result (default: bench-results/)")
    parser.add_argument("--no-write", action="store_true", help="write no file")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def options_from(arguments: argparse.Namespace, kind: type[OptionsType]) -> OptionsType:
    """The options that were given; all others keep their defaults."""
    known = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in vars(arguments).items() if name in known and value is not None})


def report(
    title: str, arguments: argparse.Namespace, measure: Callable[[Callable[[str], None]], "BenchResult"]
) -> None:
    """Measure, write the result to a file, and print it."""
    from rich.console import Console

    from engram.bench.result import default_path, show, write

    with Console(stderr=True).status(title) as status:
        result = measure(status.update)
    path = arguments.out or default_path(result)
    if not arguments.no_write:
        write(result.to_json(), path)
    if arguments.json:
        print(json.dumps(result.to_json(), indent=1, allow_nan=False))
        return
    show(result)
    if not arguments.no_write:
        print(f"wrote {path}")


def _help() -> str:
    lines = ["Usage: engram bench VERB [OPTION …]", "", "Verbs:", *(f"  {verb:<8} {VERBS[verb]}" for verb in VERBS)]
    return "\n".join([*lines, "", "`engram bench VERB --help` lists the options of a verb."])


def _parser(verb: str) -> ArgumentParser:
    parser = benchmark_parser(f"engram bench {verb}", VERBS[verb])
    parser.set_defaults(**DEFAULTS.get(verb, {}))
    if verb in ("core", "policy", "scale"):
        parser.add_argument("--rows", type=_positive_ints, metavar="N,…")
        parser.add_argument("--steps", type=positive_int)
        parser.add_argument("--resets", type=_nonnegative, help="probability of an episode start, per row and step")
    if verb in ("core", "scale"):
        parser.add_argument("--hidden", type=positive_int)
    if verb == "core":
        parser.add_argument("--layers", type=positive_int)
    if verb in TASKS:
        parser.add_argument("--tasks", type=names_from(TASKS[verb]), metavar="NAME,…", help=", ".join(TASKS[verb]))
    if verb == "policy":
        parser.add_argument("--policies", type=names_from(tuple(POLICIES)), metavar="NAME,…")
    if verb == "scale":
        parser.add_argument("--epochs", type=positive_int, help="length of the run whose memory is watched")
    return parser


def _nonnegative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of 0 or more")
    return value


def _positive_ints(text: str) -> list[int]:
    return [positive_int(word) for word in text.split(",")]
