"""Trains several runs at a time, each in a process with one thread.

The processes are forked from a server that has imported PyTorch already, so that runs start fast.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import psutil

from engram.settings import UserError
from engram.training.stop_signals import Terminated

# Imported before the first run starts. An adapter's own packages follow when a run needs them.
PRELOADED = ["engram.training.run", "engram.display.terminal", "engram.cli.train", "engram.env.recall"]
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}
GRACE_SECONDS = 30.0  # for a process that was asked to stop

Train = Callable[[list[str]], int]  # settings as for `engram train` -> exit code; importable by name


class Finished(NamedTuple):
    name: str
    code: int
    seconds: float
    output: str  # its last lines


class RunPool:
    """Processes that train runs. Used in a `with` statement; leaving it stops those that still run."""

    def __init__(self, train: Train, size: int, preload: Sequence[str] = ()) -> None:
        self.size = size
        self._train = train
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([*PRELOADED, *preload])
        self._running: dict[str, tuple[multiprocessing.process.BaseProcess, Path, float]] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="engram-runs-")

    @property
    def free(self) -> int:
        return self.size - len(self._running)

    @property
    def running(self) -> list[str]:
        return [*self._running]

    def start(self, name: str, overrides: Sequence[str]) -> None:
        """Train with these settings, in a new process."""
        output = Path(self._folder.name) / f"{len(os.listdir(self._folder.name))}.txt"
        process = self._context.Process(target=_run, args=(self._train, [*overrides], str(output)), name=name)
        with _without_main(), _one_thread():  # inherited by the server that forks, which starts with the first process
            try:
                process.start()
            except (EOFError, ConnectionError) as error:
                raise UserError(
                    "the process that forks the runs ended while it loaded: see its messages above, and check the "
                    "free memory. The same command resumes"
                ) from error
        self._running[name] = (process, output, time.monotonic())

    def stop(self, name: str) -> None:
        """Ask a run to stop. It appears among the finished ones when it has."""
        self._running[name][0].terminate()

    def finished(self, timeout: float) -> list[Finished]:
        """The runs that have ended; waits for the first of them, at most for `timeout` seconds."""
        wait([process.sentinel for process, _, _ in self._running.values()], timeout)
        ended = [name for name, (process, _, _) in self._running.items() if not process.is_alive()]
        return [self._collect(name) for name in ended]

    def __enter__(self) -> "RunPool":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        processes = [process for process, _, _ in self._running.values()]
        for process in processes:
            _ask_to_stop(process, kind)
        for process in processes:
            process.join(GRACE_SECONDS)
            _wait_until_ended(process.pid)
            if process.is_alive():
                process.kill()
                process.join()
        self._folder.cleanup()

    def _collect(self, name: str) -> Finished:
        process, output, began = self._running.pop(name)
        process.join()
        text = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
        lines = [line for line in text.splitlines() if line.strip()]
        code = process.exitcode
        return Finished(name, 1 if code is None else code, time.monotonic() - began, "\n".join(lines[-5:]))


def _ask_to_stop(process: multiprocessing.process.BaseProcess, kind: type[BaseException] | None) -> None:
    """Send a different signal than this process received.

    The run may have received that one too, and the same again would end it at once (`StopRequest`).
    """
    if kind is Terminated and process.pid is not None and process.is_alive():
        os.kill(process.pid, signal.SIGUSR1)
    else:
        process.terminate()


def _wait_until_ended(pid: int | None) -> None:
    """Wait until a run has saved its checkpoint and ended: `join` returns at once if the fork server is gone."""
    with suppress(psutil.NoSuchProcess):
        process, deadline = psutil.Process(pid), time.monotonic() + GRACE_SECONDS
        while process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            time.sleep(0.05)


def _run(train: Train, overrides: list[str], output: str) -> None:
    """The main function of a process."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    code = train(overrides)
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)


def _stop_with_parent() -> None:
    """A run must not outlive the command that started it, even if that was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide the main script, which multiprocessing would run again in every new process."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


@contextmanager
def _one_thread() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
