"""`engram soak [--minutes N]`: train while injecting faults, and check that runs resume unharmed."""

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from engram.cli.arguments import ArgumentParser, positive_int

DESCRIPTION = """Trains a small task again and again, and breaks it at random: SIGKILL, stop signals, a full disk,
damaged checkpoints, hung environments, killed and stopped workers, raising environments. After each fault it resumes.
A run must end bit-identical to an undisturbed one, or with its return if environments were restarted. The exit code is
1 if one did not, or left processes behind."""

EXAMPLES = """examples:
  engram soak
  engram soak --minutes 30 --seed 7 --out soak.json"""


def main(argv: Sequence[str]) -> int:
    parser = ArgumentParser(prog="engram soak", description=DESCRIPTION, epilog=EXAMPLES)
    parser.add_argument("--minutes", type=_minutes, default=5.0, metavar="N", help="how long (default: 5)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the faults and their times (default: 1)")
    parser.add_argument("--epochs", type=positive_int, default=40, help="length of a run (default: 40)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the result as JSON")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(argv)

    from rich.console import Console

    import engram.cli.train  # imported before children are forked, which then start at once
    import engram.training.run  # noqa: F401
    from engram.bench.result import describe_machine, write
    from engram.cli.main import main as command
    from engram.soak.report import show
    from engram.soak.soak import Plan, soak

    with tempfile.TemporaryDirectory(prefix="engram-soak-", ignore_cleanup_errors=True) as directory:
        plan = Plan(options.minutes, options.epochs, options.seed, Path(directory))
        report = soak(plan, command, lambda line: print(line, file=sys.stderr, flush=True))
    header = {
        "command": shlex.join(["engram", "soak", *argv]),
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": describe_machine(),
    }
    result = {**header, **report.to_json()}
    if options.out:
        write(result, options.out)
    if options.json:
        print(json.dumps(result, indent=1, allow_nan=False))
    else:
        show(report, Console())
    return 1 if report.all_broken_promises() else 0


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = -1.0
    if not 0 <= minutes <= 10_000:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of minutes from 0 to 10000")
    return minutes
