"""Run: a run on disk, with its settings, metrics and checkpoints. `engram.open` opens one."""

import math
import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engram.config.evaluation import find_run
from engram.config.load import SETTINGS_FILE, describe_run
from engram.config.overrides import NO_VALUE
from engram.config.run import RunSettings
from engram.settings import UserError
from engram.stored.files import check_writable, file_in_run
from engram.stored.metrics import MetricsReader, is_number, read_metrics
from engram.training.checkpoint import list_checkpoints

if TYPE_CHECKING:
    from engram.api.agent import Agent
    from engram.diagnosis import Diagnosis
    from engram.training.evaluate import Evaluation


class Run:
    """A run on disk: what `engram.train` returns and `engram.open` opens.

    >>> import engram
    >>> run = engram.open("runs/first")
    >>> run.settings.env.kind, run.steps
    ('recall', 1024)
    >>> evaluation = run.evaluate(episodes=4)
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def name(self) -> str:
        return self.directory.name

    @cached_property
    def settings(self) -> RunSettings:
        """All settings of the run."""
        return describe_run(self.directory)

    @property
    def records(self) -> list[dict[str, Any]]:
        """The metrics of every epoch so far, as in `metrics.jsonl`."""
        return read_metrics(self.directory)

    @property
    def metrics(self) -> Any:
        """One row for each epoch: a DataFrame if pandas is installed, otherwise a dict of columns."""
        records = self.records
        names = dict.fromkeys(name for record in records for name in record)
        columns = {name: [record.get(name) for record in records] for name in names}
        try:
            import pandas  # type: ignore[import-untyped]
        except ImportError:
            return columns
        return pandas.DataFrame(columns)

    @property
    def steps(self) -> int:
        """Agent-steps so far."""
        last = 0
        for record in MetricsReader(self.directory).new_records():
            steps = record.get("steps")
            if is_number(steps) and math.isfinite(steps):
                last = int(steps)
        return last

    @property
    def checkpoints(self) -> list[Path]:
        """The checkpoints that are kept, oldest first."""
        return list_checkpoints(self.directory / "checkpoints")

    def load(self, checkpoint: str = "latest", **options: Any) -> "Agent":
        """The trained agent: `engram.load` of this run."""
        from engram.api.agent import load

        return load(self, checkpoint, **options)

    def evaluate(self, episodes: int = 100, **settings: Any) -> "Evaluation":
        """Play whole episodes with the trained policy: `engram.evaluate` of this run."""
        from engram.api.evaluate import evaluate

        return evaluate(self, episodes, **settings)

    def report(self, path: str | os.PathLike[str] | None = None, *others: "Run | str | os.PathLike[str]") -> Path:
        """Write a page of charts about this run, and others beside it; by default report.html in its directory."""
        from engram.runs.report import read_report, write_report

        out = checked_path(path) if path is not None else file_in_run(self.directory, "report.html", "path")
        check_writable(out, "path")
        write_report(read_report([self.directory, *map(directory_of, others)]), out)
        return out

    def diagnose(self) -> "Diagnosis":
        """The diagnosis of `engram diagnose` from the run's metrics alone: why it does not learn, if it does not."""
        from engram.runs.report import read_report_run

        return read_report_run(self.directory).diagnosis

    def __repr__(self) -> str:
        return f"Run({str(self.directory)!r})"


def open_run(run: str | os.PathLike[str]) -> Run:
    """Open a run by its directory, or by its name below `runs`.

    >>> import engram
    >>> run = engram.open("runs/first")
    >>> [checkpoint.name for checkpoint in run.checkpoints]
    ['epoch_000002']
    >>> float(run.metrics["memory/replay_error"][0])
    0.0
    """
    return Run(directory_of(run))


def checked_path(path: Any) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"path: {path!r} is of type {type(path).__name__}: give the path of a file")
    return Path(path)


def directory_of(run: Any) -> Path:
    """The directory of a run, given as a `Run`, a path or a name."""
    if isinstance(run, Run):
        return run.directory
    if not isinstance(run, str | os.PathLike):
        raise UserError(f"run: {run!r} is of type {type(run).__name__}: give the directory of a run, or its name")
    if run == "":
        raise UserError(NO_VALUE.format(name="run"))
    path = Path(run)
    if os.path.isfile(path / SETTINGS_FILE):
        return path
    return find_run(path.name, Path("runs") if path.parent == Path() else path.parent)
