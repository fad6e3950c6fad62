"""Runs named on a command line: `RUN …`, `run=RUN`, patterns, and `runs_dir=`."""

from collections.abc import Sequence
from pathlib import Path

from engram.config.evaluation import find_run
from engram.config.load import SETTINGS_FILE
from engram.config.run import RunSettings
from engram.settings import UserError


def named_runs(verb: str, arguments: Sequence[str]) -> list[Path]:
    """Their directories, in the order given; raises with the nearest name for one that does not exist."""
    runs_dir, names = split_arguments(
        verb, arguments, f"no such option; write engram {verb} RUN … [runs_dir=DIRECTORY]"
    )
    if not names:
        raise UserError(f"{verb}: name a run: engram {verb} run=NAME (engram runs lists them)")
    found = [directory for name in names for directory in _directories(name, runs_dir)]
    return list({directory.resolve(): directory for directory in found}.values())


def split_arguments(verb: str, arguments: Sequence[str], problem: str) -> tuple[Path, list[str]]:
    """The directory of runs, and the names: after `run=`, or without `=`. Other arguments raise with `problem`."""
    runs_dir, names = RunSettings.model_fields["runs_dir"].default, []
    for argument in arguments:
        setting, equals, text = argument.partition("=")
        if equals and setting == "runs_dir":
            runs_dir = text
        elif equals and setting == "run":
            names += text.split(",")
        elif equals or argument.startswith("-"):
            raise UserError(f"{verb}: {argument}: {problem}")
        else:
            names.append(argument)
    return Path(runs_dir), names


def _directories(name: str, runs_dir: Path) -> list[Path]:
    if any(character in name for character in "*?["):
        matching = sorted(file.parent for file in runs_dir.glob(f"{name}/{SETTINGS_FILE}"))
        if matching:
            return matching
    return [find_run(name, runs_dir)]
