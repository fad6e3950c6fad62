"""Check that a policy handles its memory correctly, and show where it does not: `engram audit TARGET [env=…]`."""

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from engram.agent.settings import POLICIES
from engram.cli.arguments import ArgumentParser, add_trust_option
from engram.config.evaluation import enclosing_run, stored_path
from engram.config.groups import choices
from engram.config.load import load_run
from engram.settings import UserError
from engram.stored.files import file_in_run
from engram.training.checkpoint.files import verify_checkpoint
from engram.training.checkpoint.loading import find_checkpoint

if TYPE_CHECKING:
    from engram.audit.result import AuditReport, Check
    from engram.audit.target import AuditTarget

DESCRIPTION = """Plays a policy on random observations with random episode ends, and reports whether it handles its
memory correctly: what was measured, where a fault is, what it does to training, and how to fix it.

TARGET is one of

  fast                      a policy by its name (agent=fast: the one from YAML)
  path/to/policy.yaml       a policy from YAML
  runs/NAME                 a run, or the path of one of its checkpoints
  path/to/file.py:Class     your own policy, or a function of the environment that makes one
  package.module:Class      the same from a package
  all                       every policy that comes with Engram, with every core

  env=CHOICE                the environment it is built for (default: tmaze); env.SETTING=VALUE changes it
  py_agent.OPTION=VALUE     options of the policy"""

EPILOG = """The exit code is 0 if all checks hold, 1 if one fails, 2 if the target cannot be audited.

Examples:

  engram audit fast
  engram audit my_policy.py:MyPolicy env=gym env.id=CartPole-v1 --html report.html
  engram audit runs/fast_tmaze --only replay,detachment"""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options, with `target` (empty if the settings name the policy) and `settings`."""
    parser = ArgumentParser(
        prog="engram audit",
        usage="engram audit TARGET [SETTING=VALUE …] [options]",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as a page with figures")
    parser.add_argument(
        "--only", default="", metavar="CHECK,…", help="run some checks only, by their names in the report"
    )
    parser.add_argument("--quick", action="store_true", help="smaller sizes and no compiler: in seconds")
    parser.add_argument("--sarif", type=Path, metavar="FILE", help="write the failures as SARIF, for code scanning")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the report as JUnit XML")
    parser.add_argument(
        "--loop", action="store_true", help="TARGET is a training function of yours: file.py:train, train(env, policy)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of everything random (default: 0)")
    parser.add_argument(
        "--adapter",
        default="auto",
        metavar="NAME",
        help="how the policy is played: td, module, pufferlib, cleanrl or sb3 (default: recognised by its methods)",
    )
    add_trust_option(parser)
    options, rest = parser.parse_settings(argv)
    if unknown := [word for word in rest if word.startswith("-")]:
        raise UserError(f"engram audit: no option {unknown[0]} (see --help)")
    options.settings = [word for word in rest if "=" in word]
    targets = [word for word in rest if "=" not in word]
    if len(targets) > 1:
        raise UserError(f"engram audit: one target at a time, not {' and '.join(targets)}")
    if not targets and not any(word.startswith(("agent=", "py_agent=")) for word in options.settings):
        raise UserError("engram audit: name a target: fast, a YAML file, a run, file.py:Class, or all (see --help)")
    options.target = targets[0] if targets else ""
    options.only = [name for name in options.only.split(",") if name]
    return options


def _verify_run(target: str, trust: bool) -> None:
    """If the target is a run, refuse untrusted code and bad checkpoints before torch is imported."""
    names_policy = not target or target in {*POLICIES, *choices("agent"), "all"}
    path = None if names_policy else stored_path(target)
    run = None if path is None else enclosing_run(path)
    if path is not None and run is not None:
        load_run(run, trust, unused=("env", "trainer"))
        find_checkpoint(path, "audit", verify_checkpoint)


def main(argv: Sequence[str]) -> int:
    options = parse(argv)
    _verify_run(options.target, options.trust)
    # Imported late: torch takes seconds to load, and a mistyped option should be reported at once.
    from engram.api.audit import targets
    from engram.audit.text_report import as_json, show, show_summary

    reports = []
    if options.loop:
        from engram.audit.loop import audit_loop
        from engram.audit.target import find_object

        with redirect_stdout(sys.stderr):
            reports.append(audit_loop(find_object(options.target), options.target))
        if not options.json:
            show(reports[0])
    with redirect_stdout(sys.stderr):
        found = [] if options.loop else targets(options.target, options.settings, options.trust)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the policy's own, which every copy would repeat
        for target in found:
            with redirect_stdout(sys.stderr):  # what a policy prints is not part of the report
                reports.append(_audit(target, options))
            if not options.json:
                show(reports[-1], brief=len(found) > 1)
            _store(target, reports[-1])
    if options.json:
        print(json.dumps(as_json(reports), indent=1))
    elif len(found) > 1:
        show_summary(reports)
    _write_files(options, reports)
    return 0 if all(report.passed for report in reports) else 1


def _audit(target: "AuditTarget", options: argparse.Namespace) -> "AuditReport":
    from rich.console import Console

    from engram.audit.checks import CHECKS
    from engram.audit.context import QUICK
    from engram.audit.run import run_audit

    with Console(stderr=True).status(f"{target.name}: building") as status:

        def progress(check: "Check") -> None:
            status.update(f"{target.name}: {check.name}")

        return run_audit(
            target.make,
            target.spec,
            seed=options.seed,
            only=options.only or ([name for name in CHECKS if name != "compile"] if options.quick else []),
            adapter=options.adapter,
            takes_options=target.takes_options,
            name=target.name,
            sizes=QUICK if options.quick else target.sizes,
            progress=progress,
        )


def _store(target: "AuditTarget", report: "AuditReport") -> None:
    """Keep the results of a run in its directory, for `engram report`."""
    if target.run is None:
        return
    try:
        content = json.dumps(report.to_json())
        file_in_run(target.run, "audit.json", "--html").write_text(content, encoding="utf-8")
    except OSError as error:
        print(f"audit.json was not written for engram report ({error.strerror or error})", file=sys.stderr)


def _write_files(options: argparse.Namespace, reports: "Sequence[AuditReport]") -> None:
    from engram.audit.html_report import page
    from engram.audit.text_report import junit, sarif

    writers: dict[str, Callable[[], str]] = {
        "html": lambda: page(reports),
        "sarif": lambda: json.dumps(sarif(reports), indent=1),
        "junit": lambda: junit(reports),
    }
    for option, content in writers.items():
        path = getattr(options, option)
        if path is None:
            continue
        try:
            path.write_text(content(), encoding="utf-8")
        except OSError as error:
            raise UserError(f"--{option}: {path} cannot be written ({error.strerror or error})") from None
        print(f"wrote {path}", file=sys.stderr)
