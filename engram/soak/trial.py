"""A trial: one run, trained by the command line in child processes that may be broken and started again."""

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch

from engram.soak.environment import FAILURE_FILE
from engram.stored.metrics import read_metrics
from engram.training.checkpoint import list_checkpoints
from engram.training.checkpoint.files import Checkpoint, load_checkpoint, load_latest

RUN_NAME = "soak"
ORPHAN_SECONDS = 10.0  # for workers to notice that the program is gone
NOT_COMPARED = ("time/", "process/", "evaluate/")

Command = Callable[[Sequence[str]], int]  # the command line: arguments -> exit code


class Trial:
    """A run in `directory`. `start` trains it, or resumes it, in a new child process."""

    def __init__(self, directory: Path, overrides: Sequence[str], command: Command) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.run, self.failure_file = directory, directory / RUN_NAME, directory / "failure"
        self._output = directory / "output.txt"
        self._arguments = ["train", *overrides, f"runs_dir={directory}", f"run={RUN_NAME}"]
        self._command = command
        self._child: Any = None
        self._stamp_at_start: tuple[int, int] | None = None
        self.started = 0.0

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def code(self) -> int | None:
        """The exit code of the child; None while it runs."""
        return self._child.exitcode

    def start(self) -> None:
        self.failure_file.unlink(missing_ok=True)
        self._output.write_text("")
        self._stamp_at_start, self.started = self._metrics_stamp(), time.monotonic()
        self._child = multiprocessing.get_context("fork").Process(target=self._train)
        self._child.start()

    def wait(self, seconds: float | None = None) -> int | None:
        self._child.join(seconds)
        return self.code

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.join()

    def __enter__(self) -> "Trial":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def handles_signals(self) -> bool:
        """Whether the child handles signals: it does once it has written anything."""
        return bool(self._output.stat().st_size)

    def has_trained(self) -> bool:
        """Whether the child has finished an epoch."""
        return self._metrics_stamp() != self._stamp_at_start

    def workers(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children()
        return []

    def end_orphans(self) -> int:
        """Ends processes that the child left behind, and returns how many there were."""
        deadline = time.monotonic() + ORPHAN_SECONDS
        while (left := _session(self.pid)) and time.monotonic() < deadline:
            time.sleep(0.05)
        for process in left:
            process.kill()
        return len(left)

    def checkpoints(self) -> list[Path]:
        return list_checkpoints(self.run / "checkpoints")

    def newest(self) -> Checkpoint | None:
        return load_latest(self.run / "checkpoints")[0]

    def epochs(self) -> list[dict[str, Any]]:
        """Every epoch's metrics."""
        return read_metrics(self.run)

    def last_output_line(self) -> str:
        """The last line of the child's output."""
        lines = [line for line in self._output.read_text(encoding="utf-8").splitlines() if line.strip()]
        return lines[-1] if lines else "no output"

    def _train(self) -> None:
        # Under nohup or in the background, some signals are inherited as ignored, and a run would keep ignoring them.
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()  # so that its workers can be found after its death
        os.environ[FAILURE_FILE] = str(self.failure_file)
        os.environ["XDG_STATE_HOME"] = str(self.directory)  # no records of these runs in the user's home
        output = os.open(self._output, os.O_WRONLY | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        torch.set_num_threads(1)
        code = 1
        try:
            code = self._command(self._arguments)
        finally:
            os._exit(code)

    def _metrics_stamp(self) -> tuple[int, int] | None:
        try:
            status = (self.run / "metrics.jsonl").stat()
        except FileNotFoundError:
            return None
        return status.st_size, status.st_mtime_ns


def difference(undisturbed: Path, resumed: Path, checkpoints: Sequence[str] = ("latest", "best")) -> str | None:
    """The first metric or tensor in which two run directories differ; None if they are equal to the bit.

    Compare the best checkpoints only if both runs saved in the same epochs; a stop signal saves at once.
    """
    expected, found = (_compared_metrics(run) for run in (undisturbed, resumed))
    if len(expected) != len(found):
        return f"{len(found)} epochs in metrics.jsonl, expected {len(expected)}"
    for record, other in zip(expected, found, strict=True):
        if record != other:
            names = [name for name in record if record[name] != other.get(name)]
            return f"epoch {record['epoch']}: {', '.join(names[:3])} of metrics.jsonl differ"
    for which in checkpoints:
        content, other_content = (_content(run / "checkpoints", which) for run in (undisturbed, resumed))
        if content.keys() != other_content.keys():
            return f"the {which} checkpoint holds other tensors"
        for name, value in content.items():
            other = other_content[name]
            if not (torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other):
                return f"{name} of the {which} checkpoint differs"
    return None


def _compared_metrics(run: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{name: value for name, value in each.items() if not name.startswith(NOT_COMPARED)} for each in records]


def _content(checkpoints: Path, which: str) -> dict[str, Any]:
    """Everything in a checkpoint by name, except the seconds it took."""
    if which == "best" and not (checkpoints / "best").exists():
        return {}
    found = load_checkpoint(checkpoints / "best") if which == "best" else load_latest(checkpoints)[0]
    if found is None:
        return {}
    del found.state["progress"]["seconds"]
    tensors = {f"{group}.{name}": tensor for group, part in found.groups.items() for name, tensor in part.items()}
    return {**tensors, **found.state}


def _session(leader: int) -> list[psutil.Process]:
    """The living processes of a session."""
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
