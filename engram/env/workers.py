"""Environments stepped in worker processes over shared memory, and what becomes of a worker that fails."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engram.env.channel import Channel
from engram.env.commands import Command
from engram.env.errors import EnvError, describe
from engram.env.worker import FAILED, Job

_PATIENCE = 1.0  # seconds to leave after the channel closed, and again after SIGTERM
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
# Many small environments lie on many pages. Other C libraries ignore it.
_HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


class WorkerError(EnvError):
    """A worker died, hung or raised. All workers are gone by the time this is raised."""


@dataclass(eq=False)
class _Worker:
    number: int
    shares: dict[int, range]
    process: subprocess.Popen
    channel: Channel
    lifeline: int  # our end of a pipe: when it closes, the kernel kills the worker
    asked: deque[tuple[Command, int]] = field(default_factory=deque)  # and not answered yet, oldest first


class WorkerPool:
    """One process for each job, each with a share of many groups.

    A worker does what it is asked in order, so while the policy looks at one group the workers step the next ones
    without waiting for anybody. Both sides sleep in the kernel until a message comes, workers after a moment.
    """

    def __init__(self, environment: str, jobs: Sequence[Job], memory: int, step_timeout: float, start_timeout: float):
        self._environment = environment
        self._timeouts = [step_timeout if command == Command.STEP else start_timeout for command in Command]
        self._workers: list[_Worker] = []
        self.closed = False
        try:
            for job in jobs:
                self._workers.append(_launch(len(self._workers), job.shares, memory, step_timeout))
                self._ask(self._workers[-1], Command.BUILD, 0, pickle.dumps(job))
            for worker in self._workers:
                self._answer(worker)
        except BaseException:
            self.close()
            raise
        groups = {group for job in jobs for group in job.shares}
        self._holders = {group: self._holders_of(group) for group in groups}

    def start(self, command: Command, group: int, arguments: Sequence[Any] | None = None) -> None:
        for place, worker in enumerate(self._holders[group]):
            self._ask(worker, command, group, b"" if arguments is None else pickle.dumps(arguments[place]))

    def finish(self, group: int) -> list[Any]:
        return [self._answer(worker) for worker in self._holders[group]]

    def close(self) -> None:
        """End every worker: ask, then insist. Also those that hang or are stopped."""
        if self.closed:
            return
        self.closed = True
        for worker in self._workers:
            worker.channel.close()
        processes = [worker.process for worker in self._workers]
        for insist in (None, signal.SIGTERM, signal.SIGKILL):
            for process in processes:
                if insist is not None:
                    process.send_signal(insist)
            processes = _wait_for(processes, None if insist == signal.SIGKILL else _PATIENCE)
        for worker in self._workers:
            os.close(worker.lifeline)

    def _holders_of(self, group: int) -> list[_Worker]:
        holders = [worker for worker in self._workers if group in worker.shares]
        return sorted(holders, key=lambda worker: worker.shares[group].start)

    def _ask(self, worker: _Worker, command: Command, group: int, payload: bytes) -> None:
        worker.asked.append((command, group))
        try:
            worker.channel.send(command, group, payload)
        except BlockingIOError:
            raise self._hung(worker, self._timeouts[Command.STEP]) from None
        except OSError:
            raise self._lost(worker) from None

    def _answer(self, worker: _Worker) -> Any:
        """A worker's next answer, which is to what it was asked first."""
        timeout = self._timeouts[worker.asked[0][0]]
        try:
            worker.channel.limit_receiving(timeout)
            code, _, payload = worker.channel.receive()
        except BlockingIOError:
            raise self._hung(worker, timeout) from None
        except (EOFError, OSError):
            raise self._lost(worker) from None
        if code == FAILED:
            raise self._failed(worker, payload)
        worker.asked.popleft()
        return pickle.loads(payload) if payload else None

    def _failed(self, worker: _Worker, payload: bytes | bytearray) -> WorkerError:
        return self._error(worker, "failed", payload.decode())

    def _hung(self, worker: _Worker, timeout: float) -> WorkerError:
        dead = next((other for other in self._workers if other.process.poll() is not None), None)
        if dead is not None:
            return self._lost(dead)
        worker.process.kill()  # it would not listen to close()
        stepping = timeout == self._timeouts[Command.STEP]
        setting = "trainer.worker_timeout, or VectorEnv's step_timeout" if stepping else "VectorEnv's start_timeout"
        advice = f"If that is no fault of the environment's, allow it more time ({setting})."
        return self._error(worker, "hangs", f"it gave no answer for {timeout:g} s. {advice}")

    def _lost(self, worker: _Worker) -> WorkerError:
        """The error of a worker whose channel broke, with its last words if there are any."""
        try:
            while True:
                code, _, payload = worker.channel.receive()
                if code == FAILED:
                    return self._failed(worker, payload)
        except (EOFError, OSError):
            _wait_for([worker.process], _PATIENCE)
        return self._error(worker, "died", _cause_of_death(worker.process.poll()))

    def _error(self, worker: _Worker, verb: str, what: str) -> WorkerError:
        command, group = worker.asked[0] if worker.asked else (None, None)
        ids = list(worker.shares.values()) if group is None or command == Command.BUILD else [worker.shares[group]]
        doing = "waiting with" if command is None else command.doing
        who = f"worker {worker.number} of {len(self._workers)} {verb}"
        self.close()
        return WorkerError(describe(self._environment, who, doing, ids, what))


def _launch(number: int, shares: dict[int, range], memory: int, timeout: float) -> _Worker:
    ours, theirs = socket.socketpair()
    lifeline_end, lifeline = os.pipe()
    files = (theirs.fileno(), memory, lifeline_end)
    boot = f"import sys; sys.path[:] = {[str(path) for path in sys.path]}; from engram.env.worker import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", boot, *map(str, files)],
        pass_fds=files,
        env=_HUGE_PAGES | os.environ | dict.fromkeys(_THREADS, "1"),
        stdin=subprocess.DEVNULL,
        process_group=0,  # Ctrl-C in the terminal must not reach a worker that is still importing
    )
    theirs.close()
    os.close(lifeline_end)
    channel = Channel(ours)
    channel.limit_sending(timeout)
    return _Worker(number, shares, process, channel, lifeline)


def _wait_for(processes: Sequence[subprocess.Popen], patience: float | None) -> list[subprocess.Popen]:
    """Those that still run when patience with all of them together has run out."""
    deadline = None if patience is None else time.monotonic() + patience
    running = []
    for process in processes:
        try:
            process.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            running.append(process)
    return running


def _cause_of_death(returncode: int | None) -> str:
    if returncode is None:
        return "it closed its channel but still ran"
    if returncode >= 0:
        return f"it exited with code {returncode}"
    name = signal.Signals(-returncode).name
    hint = (
        ". Where memory runs out the system does that: try fewer environments or workers" if name == "SIGKILL" else ""
    )
    return f"it was killed by {name}{hint}"
