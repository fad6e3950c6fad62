"""The pool of worker processes: starts them, exchanges commands and replies, and detects dead and hung workers."""

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
from engram.env.workers.transport import POLL_SECONDS, Command, CommandSocket, Reply, ReplyReceiver, Status
from engram.env.workers.worker import WorkerSetup

_EXIT_SECONDS = 1.0  # granted after the command socket closes, before SIGKILL
_ALL = -1  # the "batch" of all workers
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class WorkerError(EnvError):
    """A worker died, hung or raised. All workers have been ended when this is raised."""


@dataclass(eq=False)
class _Worker:
    number: int
    shares: dict[int, range]
    process: subprocess.Popen
    commands: CommandSocket
    lifeline: int  # our end of a pipe: when it closes, the kernel kills the worker


class WorkerPool:
    """One process for each setup, each with shares of some or all batches.

    A worker carries out its commands in order, so workers step the next batch while the policy acts on this one. Both
    sides sleep in the kernel until a message arrives.
    """

    def __init__(
        self, environment: str, setups: Sequence[WorkerSetup], memory: int, step_timeout: float, start_timeout: float
    ) -> None:
        self._environment = environment
        self._timeouts = [step_timeout if command == Command.STEP else start_timeout for command in Command]
        self._receiver = ReplyReceiver()
        self._workers: list[_Worker] = []
        self._commands: dict[int, Command] = {}  # unfinished, by batch, oldest first
        self._results: dict[int, dict[int, Any]] = {}  # of the last command, by batch and worker
        self.closed = False
        try:
            try:
                for number, setup in enumerate(setups):
                    files = self._receiver.worker_end.fileno(), memory
                    self._workers.append(_launch(number, setup.shares, *files, step_timeout))
            finally:
                self._receiver.worker_end.close()
            batches = {batch for setup in setups for batch in setup.shares}
            self._owners = {batch: self._owners_of(batch) for batch in batches}
            self._owners[_ALL] = {worker.number: worker for worker in self._workers}
            self.start(Command.BUILD, _ALL, setups)
            self.finish(_ALL)
        except BaseException:
            self.close()
            raise

    def start(self, command: Command, batch: int, arguments: Sequence[Any] | None = None) -> None:
        self._commands[batch], self._results[batch] = command, {}
        for share, worker in enumerate(self._owners[batch].values()):
            try:
                worker.commands.send(command, batch, b"" if arguments is None else pickle.dumps(arguments[share]))
            except BlockingIOError:
                raise self._hung(worker, self._timeouts[Command.STEP]) from None
            except OSError:
                raise self._lost(worker) from None

    def finish(self, batch: int) -> list[Any]:
        """Also collects the replies of other batches that arrive meanwhile."""
        results, owners = self._results[batch], self._owners[batch]
        while len(results) < len(owners):
            reply = self._receiver.receive() or self._wait_for_reply(batch)
            if reply.status == Status.FAILED:
                raise self._failed(self._workers[reply.worker], reply.payload)
            self._results[reply.batch][reply.worker] = pickle.loads(reply.payload) if reply.payload else None
        del self._commands[batch]
        return [results[number] for number in owners]

    def close(self) -> None:
        """Ends every worker, also those that hang or are stopped: closes the sockets, then kills."""
        if self.closed:
            return
        self.closed = True
        for worker in self._workers:
            worker.commands.close()
        self._receiver.close()
        processes = [worker.process for worker in self._workers]
        for process in (running := _wait_for(processes, _EXIT_SECONDS)):
            process.kill()
        _wait_for(running, None)
        for worker in self._workers:
            os.close(worker.lifeline)

    def _owners_of(self, batch: int) -> dict[int, _Worker]:
        """The workers of a batch by number, in the order of their shares."""
        owners = [worker for worker in self._workers if batch in worker.shares]
        return {worker.number: worker for worker in sorted(owners, key=lambda worker: worker.shares[batch].start)}

    def _wait_for_reply(self, batch: int) -> Reply:
        """Waits in short polls and counts them, so that a pause of the whole program (Ctrl-Z) is not a timeout."""
        timeout = self._timeouts[self._commands[batch]]
        for _ in range(round(timeout / POLL_SECONDS)):
            dead = next((worker for worker in self._workers if worker.process.poll() is not None), None)
            reply = self._receiver.receive()
            if reply is not None:
                return reply
            if dead is not None:
                raise self._lost(dead)
        raise self._hung(next(self._unfinished(batch)), timeout)

    def _unfinished(self, batch: int) -> Iterator[_Worker]:
        """The workers that have not replied to a batch's command."""
        return (worker for number, worker in self._owners[batch].items() if number not in self._results[batch])

    def _failed(self, worker: _Worker, payload: bytes | bytearray) -> WorkerError:
        return self._error(worker, "failed", payload.decode())

    def _hung(self, worker: _Worker, timeout: float) -> WorkerError:
        worker.process.kill()  # it would not notice a closed socket
        stepping = timeout == self._timeouts[Command.STEP]
        setting = "trainer.worker_timeout, or VectorEnv's step_timeout" if stepping else "VectorEnv's start_timeout"
        advice = f"If the environment is only slow, raise the timeout ({setting})."
        return self._error(worker, "hangs", f"no reply for {timeout:g} s. {advice}")

    def _lost(self, worker: _Worker) -> WorkerError:
        """The error of a worker that died, or the failure that it or another one reported before."""
        while (reply := self._receiver.receive()) is not None:
            if reply.status == Status.FAILED:
                return self._failed(self._workers[reply.worker], reply.payload)
        _wait_for([worker.process], _EXIT_SECONDS)
        return self._error(worker, "died", _cause_of_death(worker.process.poll()))

    def _error(self, worker: _Worker, outcome: str, what: str) -> WorkerError:
        batch = next((batch for batch in self._commands if worker in self._unfinished(batch)), _ALL)
        verb = self._commands[batch].verb if batch in self._commands else "waiting with"
        ids = list(worker.shares.values()) if batch == _ALL else [worker.shares[batch]]
        subject = f"worker {worker.number} of {len(self._workers)} {outcome}"
        self.close()
        return WorkerError(describe(self._environment, subject, verb, ids, what))


def _launch(number: int, shares: dict[int, range], reply_file: int, memory: int, send_timeout: float) -> _Worker:
    our_end, worker_end = socket.socketpair()
    lifeline_end, lifeline = os.pipe()
    files = (worker_end.fileno(), reply_file, memory, lifeline_end)
    paths = [str(path) for path in sys.path]
    code = f"import sys; sys.path[:] = {paths}; from engram.env.workers.worker import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", code, *map(str, (number, *files))],
        pass_fds=files,
        env=os.environ | dict.fromkeys(_THREADS, "1"),
        stdin=subprocess.DEVNULL,
        process_group=0,  # Ctrl-C in the terminal must not reach a worker that is still importing
    )
    worker_end.close()
    os.close(lifeline_end)
    return _Worker(number, shares, process, CommandSocket(our_end, send_timeout), lifeline)


def _wait_for(processes: Sequence[subprocess.Popen], seconds: float | None) -> list[subprocess.Popen]:
    """Waits for all processes together; returns those that still run."""
    deadline = None if seconds is None else time.monotonic() + seconds
    running = []
    for process in processes:
        try:
            process.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            running.append(process)
    return running


def _cause_of_death(returncode: int | None) -> str:
    if returncode is None:
        return "it closed its socket but still runs"
    if returncode >= 0:
        return f"it exited with code {returncode}"
    name = signal.Signals(-returncode).name
    hint = ". The system does that when memory runs out: try fewer environments or workers" if name == "SIGKILL" else ""
    return f"it was killed by {name}{hint}"
