"""Measure speed and learning on this machine: `engram bench core|env|policy|train|scale|learn|parity [OPTION …]`."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from engram.agent.settings import POLICIES
from engram.bench.learning.suite import SUITES, Job, LearnOptions, plan
from engram.bench.race import Options
from engram.cli.arguments import ArgumentParser, names_from, positive_int
from engram.config.groups import choices
from engram.cores import available_cores
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
LEARN = """Trains tasks (engram train task=NAME) over several seeds, one thread per run and several runs at once,
and evaluates them greedily and with sampled actions. Prints a table and writes results.json and page.html.

Finished runs are kept. The same command again skips them and resumes the others."""
PARITY = """Trains the YAML and the Python form of policies (agent=NAME and py_agent=NAME) over several seeds, and tests
whether their returns differ. Finished runs are kept, and shared with `engram bench learn` of the same --out.

The exit code is 1 if they differ or a run failed. With 5 seeds, only differences larger than the spread are found."""
PARITY_TASKS = ["control/CartPole", "recall/delay10", "tmaze/corridor5"]
LEARN_EXAMPLES = """examples:
  engram bench learn --suite quick
  engram bench learn --tasks control/CartPole,recall/delay100 --seeds 3
  engram bench learn --tasks my_task.yaml trainer.ppo.gamma=0.999 --out bench-results/gamma
  engram bench learn --vary py_agent.core=lstm,gru,mingru,lru,attention"""


def main(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("--help", "-h"):
        print(_help())
        return 0
    verb, *rest = argv
    if verb not in VERBS:
        raise UserError(
            f"engram bench: unknown benchmark '{verb}'{suggestion(verb, VERBS)} ({', '.join(VERBS)}; "
            'races against other systems: make bench ARGS="peers" in a clone)'
        )
    if verb in ("learn", "parity"):
        return learn(rest) if verb == "learn" else parity(rest)
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


def learn(argv: Sequence[str]) -> int:
    """`engram bench learn`: train recipes over several seeds and compare what they reach."""
    parser = learning_parser("engram bench learn", LEARN)
    parser.add_argument("--vary", action="append", default=[], metavar="NAME=A,B,…", help="compare values of a setting")
    arguments, settings = parser.parse_settings(argv)
    options = learn_options(arguments, settings)
    return run_and_report(plan(options), arguments.jobs, options, dry=arguments.dry_run, only_report=arguments.report)


def parity(argv: Sequence[str]) -> int:
    """`engram bench parity`: whether the YAML and the Python form of a policy learn the same."""
    parser = learning_parser("engram bench parity", PARITY)
    known = [name for name in choices("agent") if name in POLICIES]
    parser.set_defaults(tasks=PARITY_TASKS)
    parser.add_argument("--policies", type=names_from(known), default=["fast"], metavar="NAME,…", help=", ".join(known))
    arguments, settings = parser.parse_settings(argv)
    options = learn_options(arguments, [])
    from engram.bench.learning.parity import both_forms, compare, show
    from engram.bench.learning.result import collect

    jobs = plan(options, [(*form, *settings) for policy in arguments.policies for form in both_forms(policy)])
    code = run_and_report(jobs, arguments.jobs, options, dry=arguments.dry_run, only_report=arguments.report)
    if not arguments.dry_run:
        comparisons = compare(collect(jobs))
        show(comparisons)
        code = max(code, int(any(each.differ for each in comparisons)))
    return code


def learning_parser(program: str, description: str) -> ArgumentParser:
    """A parser with the options of benchmarks that train recipes."""
    parser = ArgumentParser(
        prog=program, usage=f"{program} [OPTION …] [SETTING=VALUE …]", description=description, epilog=LEARN_EXAMPLES
    )
    limits = ", ".join(f"{name}: up to {steps:,}" for name, steps in SUITES.items() if name != "full")
    defaults = LearnOptions()
    parser.add_argument("--suite", choices=SUITES, default=defaults.suite, help=f"tasks by budget ({limits} steps)")
    parser.add_argument("--tasks", type=_names, default=[], metavar="NAME,…", help="recipes or YAML files instead")
    parser.add_argument("--seeds", type=positive_int, metavar="N", help="default: 5, or 3 above 2 million steps")
    parser.add_argument("--first-seed", type=positive_int, default=defaults.first_seed, metavar="N", help="default: 1")
    parser.add_argument("--jobs", type=positive_int, default=available_cores(), help="runs at once (default: cores)")
    parser.add_argument("--out", type=Path, default=defaults.out, metavar="DIR", help=f"default: {defaults.out}")
    parser.add_argument("--episodes", type=positive_int, default=defaults.episodes, help="of the final evaluations")
    parser.add_argument("--points", type=positive_int, default=defaults.points, help="evaluations during a run")
    parser.add_argument("--dry-run", action="store_true", help="print the commands of the runs, and do nothing")
    parser.add_argument("--report", action="store_true", help="report the runs that are finished, and run nothing")
    return parser


def learn_options(arguments: object, settings: Sequence[str]) -> LearnOptions:
    given = {name: value for name, value in vars(arguments).items() if name in LearnOptions.__dataclass_fields__}
    return LearnOptions(**given, overrides=[*settings])


def run_and_report(jobs: Sequence[Job], at_once: int, options: LearnOptions, *, dry: bool, only_report: bool) -> int:
    """Run what is missing, then print and write the results. The exit code is 1 if a run failed."""
    if dry:
        print("\n".join(command for job in jobs for command in job.commands))
        return 0
    from engram.bench.learning.page import write_page
    from engram.bench.learning.result import collect, result_to_json, show
    from engram.bench.learning.suite import run_jobs
    from engram.bench.result import write

    failures = {} if only_report else run_jobs(jobs, at_once, lambda line: print(line, file=sys.stderr, flush=True))
    rows = collect(jobs)
    content = result_to_json(rows, failures)
    write(content, options.out / "results.json")
    write_page(content, rows, options.out / "page.html")
    show(rows, failures)
    print(f"wrote {options.out / 'results.json'} and {options.out / 'page.html'}")
    return 1 if failures else 0


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


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]
