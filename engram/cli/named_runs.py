"""The runs that a command line names: `RUN …`, `run=RUN`, patterns such as `tmaze_*`, and `runs_dir=`."""

from collections.abc import Sequence
from pathlib import Path

from engram.config.evaluation import find_run
from engram.config.load import SETTINGS_FILE
from engram.config.run import RunSettings
from engram.settings import UserError


def named_runs(verb: str, words: Sequence[str]) -> list[Path]:
    """Their directories, in the order given; raises with the nearest name for one that does not exist."""
    runs_dir, names = RunSettings.model_fields["runs_dir"].default, []
    for word in words:
        setting, equals, text = word.partition("=")
        if equals and setting == "runs_dir":
            runs_dir = text
        elif equals and setting == "run":
            names += text.split(",")
        elif equals or word.startswith("-"):
            raise UserError(f"{verb}: {word}: no such option; write engram {verb} RUN … [runs_dir=DIRECTORY]")
        else:
            names.append(word)
    if not names:
        raise UserError(f"{verb}: name a run: engram {verb} run=NAME (engram runs lists them)")
    found = [directory for name in names for directory in _directories(name, Path(runs_dir))]
    return list({directory.resolve(): directory for directory in found}.values())


def _directories(name: str, runs_dir: Path) -> list[Path]:
    if any(character in name for character in "*?["):
        matching = sorted(file.parent for file in runs_dir.glob(f"{name}/{SETTINGS_FILE}"))
        if matching:
            return matching
    return [find_run(name, runs_dir)]
