"""Environments stepped in worker processes over shared memory, and what becomes of a worker that fails."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from engram.env.errors import EnvError, describe
from engram.env.workers.answers import SLICE, Answer, Answers
from engram.env.workers.channel import Channel
from engram.env.workers.commands import Command, Done
from engram.env.workers.worker import FAILED, Job

_PATIENCE = 1.0  # seconds to leave after the channel closed, and again after SIGTERM
_ALL = -1  # the group of all workers
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


class WorkerPool:
    """One process for each job, each with a share of many groups.

    A worker does what it is asked in order, so while the policy looks at one group the workers step the next ones
    without waiting for anybody. Both sides sleep in the kernel until a message comes, workers after a moment.
    """

    def __init__(self, environment: str, jobs: Sequence[Job], memory: int, step_timeout: float, start_timeout: float):
        self._environment = environment
        self._timeouts = [step_timeout if command == Command.STEP else start_timeout for command in Command]
        self._inbox = Answers()
        self._workers: list[_Worker] = []
        self._asked: dict[int, Command] = {}  # by group, oldest first
        self._answers: dict[int, dict[int, Any]] = {}  # by group and worker: those to what was asked last
        self._kept: dict[int, list[Any]] = {}  # by group: the answers of those done while another was waited for
        self.closed = False
        try:
            try:
                for number, job in enumerate(jobs):
                    files = self._inbox.theirs.fileno(), memory
                    self._workers.append(_launch(number, job.shares, *files, step_timeout))
            finally:
                self._inbox.theirs.close()
            groups = {group for job in jobs for group in job.shares}
            self._holders = {group: self._holders_of(group) for group in groups}
            self._holders[_ALL] = {worker.number: worker for worker in self._workers}
            self.start(Command.BUILD, _ALL, jobs)
            self.finish(_ALL)
        except BaseException:
            self.close()
            raise

    def start(self, command: Command, group: int, arguments: Sequence[Any] | None = None) -> None:
        self._asked[group], self._answers[group] = command, {}
        for place, worker in enumerate(self._holders[group].values()):
            try:
                worker.channel.send(command, group, b"" if arguments is None else pickle.dumps(arguments[place]))
            except BlockingIOError:
                raise self._hung(worker, self._timeouts[Command.STEP]) from None
            except OSError:
                raise self._lost(worker) from None

    def finish(self, group: int | None = None) -> Done:
        kept = next(iter(self._kept), None) if group is None else group
        if kept in self._kept:
            return kept, self._kept.pop(kept)
        while True:
            number, code, answered, payload = self._inbox.receive() or self._late_answer(group)
            if code == FAILED:
                raise self._failed(self._workers[number], payload)
            answers, holders = self._answers[answered], self._holders[answered]
            answers[number] = pickle.loads(payload) if payload else None
            if len(answers) == len(holders):
                del self._asked[answered]
                done = answered, [*map(answers.__getitem__, holders)]
                if group is None or group == answered:
                    return done
                self._kept.update([done])

    def close(self) -> None:
        """End every worker: ask, then insist. Also those that hang or are stopped."""
        if self.closed:
            return
        self.closed = True
        for worker in self._workers:
            worker.channel.close()
        self._inbox.close()
        processes = [worker.process for worker in self._workers]
        for insist in (None, signal.SIGTERM, signal.SIGKILL):
            for process in processes:
                if insist is not None:
                    process.send_signal(insist)
            processes = _wait_for(processes, None if insist == signal.SIGKILL else _PATIENCE)
        for worker in self._workers:
            os.close(worker.lifeline)

    def _holders_of(self, group: int) -> dict[int, _Worker]:
        """By number, in the order of their shares."""
        holders = [worker for worker in self._workers if group in worker.shares]
        return {worker.number: worker for worker in sorted(holders, key=lambda worker: worker.shares[group].start)}

    def _late_answer(self, group: int | None) -> Answer:
        """Waited for in slices: who is stopped for a while (Ctrl-Z and fg) loses no more than one of them."""
        group = next(iter(self._asked)) if group is None else group
        timeout = self._timeouts[self._asked[group]]
        for _ in range(round(timeout / SLICE)):
            dead = next((worker for worker in self._workers if worker.process.poll() is not None), None)
            answer = self._inbox.receive()
            if answer is not None:
                return answer
            if dead is not None:
                raise self._lost(dead)
        raise self._hung(next(self._late(group)), timeout)

    def _late(self, group: int) -> Iterator[_Worker]:
        """Those who have not answered what the group was asked."""
        return (worker for number, worker in self._holders[group].items() if number not in self._answers[group])

    def _failed(self, worker: _Worker, payload: bytes | bytearray) -> WorkerError:
        return self._error(worker, "failed", payload.decode())

    def _hung(self, worker: _Worker, timeout: float) -> WorkerError:
        worker.process.kill()  # it would not listen to close()
        stepping = timeout == self._timeouts[Command.STEP]
        setting = "trainer.worker_timeout, or VectorEnv's step_timeout" if stepping else "VectorEnv's start_timeout"
        advice = f"If that is no fault of the environment's, allow it more time ({setting})."
        return self._error(worker, "hangs", f"it gave no answer for {timeout:g} s. {advice}")

    def _lost(self, worker: _Worker) -> WorkerError:
        """The error of a worker that is gone, or the last words of one that failed."""
        while (answer := self._inbox.receive()) is not None:
            number, code, _, payload = answer
            if code == FAILED:
                return self._failed(self._workers[number], payload)
        _wait_for([worker.process], _PATIENCE)
        return self._error(worker, "died", _cause_of_death(worker.process.poll()))

    def _error(self, worker: _Worker, verb: str, what: str) -> WorkerError:
        group = next((group for group in self._asked if worker in self._late(group)), _ALL)  # what it was asked first
        doing = self._asked[group].doing if group in self._asked else "waiting with"
        ids = list(worker.shares.values()) if group == _ALL else [worker.shares[group]]
        who = f"worker {worker.number} of {len(self._workers)} {verb}"
        self.close()
        return WorkerError(describe(self._environment, who, doing, ids, what))


def _launch(number: int, shares: dict[int, range], answers: int, memory: int, timeout: float) -> _Worker:
    ours, theirs = socket.socketpair()
    lifeline_end, lifeline = os.pipe()
    files = (theirs.fileno(), answers, memory, lifeline_end)
    paths = [str(path) for path in sys.path]
    boot = f"import sys; sys.path[:] = {paths}; from engram.env.workers.worker import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", boot, *map(str, (number, *files))],
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
