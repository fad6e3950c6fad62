"""Measure speed, side by side in one run: `engram bench core|env|policy|train|scale|peers [OPTION …]`."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from engram.bench.catalogue import PEERS
from engram.bench.options import DEFAULT_VENVS, Options
from engram.nearest import suggestion
from engram.settings import UserError

VERBS = {
    "core": "the recurrent core against torch.nn.LSTM: forward and backward, and one step of acting",
    "env": "the environment layer against bare loops, in this process and in two",
    "policy": "every policy, acting and learning",
    "train": "training from end to end, split by phase",
    "scale": "how time and memory grow with rows, steps, hidden size and the length of a run",
    "peers": "Engram and other systems at the same work",
}
TASKS = {
    "env": ("arena", "small", "tmaze", "navigation", "pole", "recall"),
    "train": ("arena", "pole", "tmaze"),
    "peers": ("pole", "arena", "arena52"),
}
DEFAULTS: dict[str, dict[str, Any]] = {  # where a verb's own differ from those of Options
    "env": {"seconds": 0.3, "rounds": 15},
    "policy": {"rows": [384]},
    "train": {"seconds": 3.0, "rounds": 6},
    "scale": {"rows": [256], "rounds": 7},
    "peers": {"seconds": 3.0, "rounds": 6},
}
RESULTS = Path("bench/results")


def main(words: Sequence[str]) -> int:
    if not words or words[0] in ("--help", "-h"):
        print(_help())
        return 0
    verb, *rest = words
    if verb not in VERBS:
        raise UserError(f"engram bench: nothing is called '{verb}'{suggestion(verb, VERBS)} ({', '.join(VERBS)})")
    asked = _parser(verb).parse_args(rest)
    options = _options(verb, asked)
    # Loaded here and not above: torch takes seconds, and a mistyped option should be answered at once.
    from rich.console import Console

    from engram.bench.result import write
    from engram.bench.table import show

    with Console(stderr=True).status(f"engram bench {verb}") as status:
        result = import_module(f"engram.bench.{verb}").measure(options, status.update)
    path = None if asked.no_write else write(result, asked.out or RESULTS)
    if asked.json:
        print(json.dumps(result.to_json(), indent=1, allow_nan=False))
    else:
        show(result)
        if path is not None:
            print(f"written to {path}")
    return 0


def _help() -> str:
    lines = ["Usage: engram bench VERB [OPTION …]", "", "Verbs:", *(f"  {verb:<8} {VERBS[verb]}" for verb in VERBS)]
    return "\n".join([*lines, "", "`engram bench VERB --help` tells its options."])


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{self.prog}: {message} (see --help)")


def _parser(verb: str) -> argparse.ArgumentParser:
    parser = _Parser(prog=f"engram bench {verb}", description=VERBS[verb], allow_abbrev=False)
    parser.set_defaults(**DEFAULTS.get(verb, {}))
    parser.add_argument("--rounds", type=_count, help="turns that everybody has")
    parser.add_argument("--seconds", type=_positive, help="of a turn")
    parser.add_argument("--threads", type=_counts, help="of torch, as in 1,2: the best counts", metavar="N,…")
    if verb in ("core", "policy", "scale"):
        parser.add_argument("--rows", type=_counts, metavar="N,…")
        parser.add_argument("--steps", type=_count)
        parser.add_argument("--resets", type=_positive, help="chance of an episode start, per row and step")
    if verb in ("core", "scale"):
        parser.add_argument("--hidden", type=_count)
    if verb == "core":
        parser.add_argument("--layers", type=_count)
    if verb in TASKS:
        parser.add_argument("--tasks", type=_names(TASKS[verb]), metavar="NAME,…", help=", ".join(TASKS[verb]))
    if verb == "policy":
        parser.add_argument("--policies", type=_names(None), metavar="NAME,…")
    if verb == "scale":
        parser.add_argument("--epochs", type=_count, help="of the run that must not grow")
    if verb == "peers":
        parser.add_argument("--peers", type=_names(tuple(PEERS)), metavar="NAME,…", help=", ".join(PEERS))
        parser.add_argument("--install", action="store_true", help="first install those that are not")
        parser.add_argument("--venvs", type=Path, default=DEFAULT_VENVS, help="where they are installed")
        parser.add_argument(
            "--learn", type=_count, metavar="STEPS", help="compare returns on the pole too, after STEPS"
        )
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"where the result is written (default: {RESULTS})")
    parser.add_argument("--no-write", action="store_true", help="write no file")
    parser.add_argument("--json", action="store_true", help="the result as JSON on standard output")
    return parser


def _options(verb: str, asked: argparse.Namespace) -> Options:
    known = {field.name for field in fields(Options)}
    return Options(**{name: value for name, value in vars(asked).items() if name in known and value is not None})


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number above 0")
    return int(text)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of 0 or more")
    return value


def _counts(text: str) -> list[int]:
    return [_count(word) for word in text.split(",")]


def _names(there: tuple[str, ...] | None) -> Any:
    def names(text: str) -> list[str]:
        from engram.agent.settings import POLICIES

        possible = tuple(POLICIES) if there is None else there
        for word in (found := text.split(",")):
            if word not in possible:
                hint = suggestion(word, possible)
                raise argparse.ArgumentTypeError(f"nothing is called '{word}'{hint} ({', '.join(possible)})")
        return found

    return names
