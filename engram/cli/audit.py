"""Prove that a policy's memory is handled right, or show where it is not: `engram audit TARGET [env=…]`."""

import json
import sys
import warnings
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from engram.nearest import suggestion
from engram.settings import UserError

if TYPE_CHECKING:
    from engram.audit.result import Report
    from engram.audit.target import Target

HELP = """Usage: engram audit TARGET [SETTING=VALUE …] [--json] [--html FILE] [--only CHECK,…] [--seed N]
                    [--adapter NAME]

Plays a policy on random observations with random episode ends, and tells whether its memory is handled right: what was
measured, where it is wrong, what that does to training, and how to fix it.

TARGET is one of

  fast                      a policy by its name (agent=fast: the one from YAML)
  path/to/policy.yaml       a policy from YAML
  runs/NAME                 a run, or the path of one of its checkpoints
  path/to/file.py:Class     a policy of your own, or a function of the environment that makes one
  package.module:Class      the same from a package
  all                       every policy that comes with Engram, with every core

  env=CHOICE                the environment it is built for (default: tmaze); env.SETTING=VALUE changes it
  py_agent.OPTION=VALUE     options of the policy

  --json                    the report as JSON on standard output
  --html FILE               the report as a page, with pictures
  --only CHECK,…            some checks only, by the names they have in the report
  --seed N                  of everything random (default: 0)
  --adapter NAME            how the policy is played: td, module, pufferlib, cleanrl or sb3 (default: by its methods)

The exit code is 0 if all hold, 1 if a check fails, 2 if the target cannot be audited.

Examples:

  engram audit fast
  engram audit my_policy.py:MyPolicy env=gym env.id=CartPole-v1 --html report.html
  engram audit runs/fast_tmaze --only replay,detachment"""

VALUED = ("--html", "--only", "--seed", "--adapter")


class Asked(NamedTuple):
    target: str  # empty: the settings name the policy
    settings: list[str]
    as_json: bool
    html: Path | None
    only: list[str]
    seed: int
    adapter: str


def main(words: Sequence[str]) -> int:
    if {"--help", "-h"} & {*words}:
        print(HELP)
        return 0
    asked = parse(words)
    # Loaded here and not above: torch takes seconds, and a mistyped option should be answered at once.
    from engram.audit.report import as_json, show
    from engram.cli.audit_targets import targets

    with redirect_stdout(sys.stderr):
        found = targets(asked.target, asked.settings)
    reports = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the policy's own, which would be told a dozen times
        for target in found:
            with redirect_stdout(sys.stderr):  # what a policy prints is no part of the report
                reports.append(_audited(target, asked))
            if not asked.as_json:
                show(reports[-1], brief=len(found) > 1)
    if asked.as_json:
        print(json.dumps(as_json(reports), indent=1))
    elif len(found) > 1:
        from engram.audit.report import show_summary

        show_summary(reports)
    if asked.html:
        _write(asked.html, reports)
    return 0 if all(report.passed for report in reports) else 1


def parse(words: Sequence[str]) -> Asked:
    """What a command line asks for; raises with the way to write it."""
    given: dict[str, str] = {}
    rest, settings, flags = list(words), [], set()
    plain: list[str] = []
    while rest:
        word = rest.pop(0)
        name, equals, text = word.partition("=")
        if name in VALUED:
            if not equals and (not rest or rest[0].startswith("--")):
                raise UserError(f"{name}: give a value, as in {name} {_example(name)}")
            given[name] = text if equals else rest.pop(0)
        elif word == "--json":
            flags.add(word)
        elif word.startswith("-"):
            raise UserError(f"engram audit: no option {name}{suggestion(name, ['--json', *VALUED])}")
        elif equals:
            settings.append(word)
        else:
            plain.append(word)
    if len(plain) > 1:
        raise UserError(f"engram audit: one target at a time, not {' and '.join(plain)}")
    named = any(word.startswith(("agent=", "py_agent=")) for word in settings)
    if not plain and not named:
        raise UserError("engram audit: name a target: fast, a YAML file, a run, file.py:Class, or all (see --help)")
    if not given.get("--seed", "0").isdigit():
        raise UserError(f"--seed: '{given['--seed']}' is not a whole number")
    return Asked(
        plain[0] if plain else "",
        settings,
        bool(flags),
        Path(given["--html"]) if "--html" in given else None,
        [name for name in given.get("--only", "").split(",") if name],
        int(given.get("--seed", 0)),
        given.get("--adapter", "auto"),
    )


def _example(name: str) -> str:
    return {"--html": "report.html", "--only": "replay,detachment", "--seed": "3", "--adapter": "cleanrl"}[name]


def _audited(target: "Target", asked: Asked) -> "Report":
    from rich.console import Console

    from engram.audit.run import run_audit

    console = Console(stderr=True)
    with console.status(f"{target.name}: building") as status:

        def progress(check: Any) -> None:
            status.update(f"{target.name}: {check.name}")

        return run_audit(
            target.make,
            target.spec,
            seed=asked.seed,
            only=asked.only,
            adapter=asked.adapter,
            takes_options=target.takes_options,
            name=target.name,
            progress=progress,
        )


def _write(path: Path, reports: "Sequence[Report]") -> None:
    from engram.audit.page import page

    try:
        path.write_text(page(reports), encoding="utf-8")
    except OSError as error:
        raise UserError(f"--html: {path} cannot be written ({error.strerror or error})") from None
    print(f"wrote {path}", file=sys.stderr)
