"""The process of one worker: launching it, ending it, and the cause of its death."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from engram.env.workers.transport import CommandSocket

EXIT_SECONDS = 1.0  # granted after the command socket closes, before SIGKILL
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(eq=False)
class WorkerProcess:
    number: int  # of all processes that the pool has launched
    slot: int  # the place in the pool, which a restarted worker takes over
    shares: dict[int, range]  # environment ids by batch
    process: subprocess.Popen
    commands: CommandSocket
    lifeline: int  # our end of a pipe: when it closes, the kernel kills the worker

    @property
    def died(self) -> bool:
        return self.process.poll() is not None

    def cause_of_death(self) -> str:
        wait_for([self.process], EXIT_SECONDS)
        returncode = self.process.poll()
        if returncode is None:
            return "it closed its socket but still runs"
        if returncode >= 0:
            return f"it exited with code {returncode}"
        name = signal.Signals(-returncode).name
        memory = ". The system does that when memory runs out: try fewer environments or workers"
        return f"it was killed by {name}{memory if name == 'SIGKILL' else ''}"


def launch(
    number: int, slot: int, shares: dict[int, range], reply_file: int, memory: int, send_timeout: float
) -> WorkerProcess:
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
    return WorkerProcess(number, slot, shares, process, CommandSocket(our_end, send_timeout), lifeline)


def end(workers: Sequence[WorkerProcess], seconds: float = EXIT_SECONDS) -> None:
    """Ends workers, also those that hang or are stopped: closes the sockets, then kills after some seconds."""
    for worker in workers:
        worker.commands.close()
    for process in (running := wait_for([worker.process for worker in workers], seconds)):
        process.kill()
    wait_for(running, None)
    for worker in workers:
        os.close(worker.lifeline)


def wait_for(processes: Sequence[subprocess.Popen], seconds: float | None) -> list[subprocess.Popen]:
    """Waits for all processes together; returns those that still run."""
    deadline = None if seconds is None else time.monotonic() + seconds
    running = []
    for process in processes:
        try:
            process.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            running.append(process)
    return running
