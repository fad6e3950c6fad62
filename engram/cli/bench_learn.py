"""`engram bench learn` and `engram bench parity`: train recipes over several seeds and compare what they reach."""

import sys
from collections.abc import Sequence
from pathlib import Path

from engram.agent.settings import POLICIES
from engram.bench.learning.suite import SUITES, Job, LearnOptions, plan
from engram.cli.arguments import ArgumentParser, names_from, positive_int
from engram.config.groups import choices
from engram.cores import available_cores

DESCRIPTION = """Trains tasks (engram train task=NAME) over several seeds, one thread per run and several runs at once,
and evaluates them greedily and with sampled actions. Prints a table and writes results.json and page.html.

Finished runs are kept. The same command again skips them and resumes the others."""
PARITY = """Trains the YAML and the Python form of policies (agent=NAME and py_agent=NAME) over several seeds, and tests
whether their returns differ. Finished runs are kept, and shared with `engram bench learn` of the same --out.

The exit code is 1 if they differ or a run failed. With 5 seeds, only differences larger than the spread are found."""
PARITY_TASKS = ["control/CartPole", "recall/delay10", "tmaze/corridor5"]
EXAMPLES = """examples:
  engram bench learn --suite quick
  engram bench learn --tasks control/CartPole,recall/delay100 --seeds 3
  engram bench learn --tasks my_task.yaml trainer.ppo.gamma=0.999 --out bench-results/gamma
  engram bench learn --vary py_agent.core=lstm,gru,mingru,lru,attention"""


def main(words: Sequence[str]) -> int:
    parser = learning_parser("engram bench learn", DESCRIPTION)
    parser.add_argument("--vary", action="append", default=[], metavar="NAME=A,B,…", help="compare values of a setting")
    arguments, settings = parser.parse_settings(words)
    options = options_from(arguments, settings)
    return run_and_report(plan(options), arguments.jobs, options, dry=arguments.dry_run, only_report=arguments.report)


def parity(words: Sequence[str]) -> int:
    parser = learning_parser("engram bench parity", PARITY)
    known = [name for name in choices("agent") if name in POLICIES]
    parser.set_defaults(tasks=PARITY_TASKS)
    parser.add_argument("--policies", type=names_from(known), default=["fast"], metavar="NAME,…", help=", ".join(known))
    arguments, settings = parser.parse_settings(words)
    options = options_from(arguments, [])
    from engram.bench.learning.parity import compare, forms, show
    from engram.bench.learning.result import collect

    jobs = plan(options, [(*form, *settings) for policy in arguments.policies for form in forms(policy)])
    code = run_and_report(jobs, arguments.jobs, options, dry=arguments.dry_run, only_report=arguments.report)
    if not arguments.dry_run:
        comparisons = compare(collect(jobs))
        show(comparisons)
        code = max(code, int(any(each.differ for each in comparisons)))
    return code


def learning_parser(program: str, description: str) -> ArgumentParser:
    """A parser with the options of benchmarks that train recipes."""
    parser = ArgumentParser(
        prog=program, usage=f"{program} [OPTION …] [SETTING=VALUE …]", description=description, epilog=EXAMPLES
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


def options_from(arguments: object, settings: Sequence[str]) -> LearnOptions:
    given = {name: value for name, value in vars(arguments).items() if name in LearnOptions.__dataclass_fields__}
    return LearnOptions(**given, words=[*settings])


def run_and_report(jobs: Sequence[Job], at_once: int, options: LearnOptions, *, dry: bool, only_report: bool) -> int:
    """Run what is missing, then print and write the results. The exit code is 1 if a run failed."""
    if dry:
        print("\n".join(command for job in jobs for command in job.commands))
        return 0
    from engram.bench.learning.jobs import run_jobs
    from engram.bench.learning.page import write_page
    from engram.bench.learning.result import collect, result_to_json, show
    from engram.bench.result import write

    failures = {} if only_report else run_jobs(jobs, at_once, lambda line: print(line, file=sys.stderr, flush=True))
    rows = collect(jobs)
    content = result_to_json(rows, failures)
    write(content, options.out / "results.json")
    write_page(content, rows, options.out / "page.html")
    show(rows, failures)
    print(f"wrote {options.out / 'results.json'} and {options.out / 'page.html'}")
    return 1 if failures else 0


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]
