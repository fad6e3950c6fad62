"""A worker process: holds one block for its share of each batch, and carries out commands on them.

It is a fresh interpreter that inherits four file descriptors. `multiprocessing` would import the user's main module
(and torch) into every worker, require a main guard, and leave a resource tracker running.
"""

import contextlib
import fcntl
import gc
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from engram.env import user_code
from engram.env.block import Block, Buffers
from engram.env.errors import NotFiniteError, describe_exception, is_wrong_step
from engram.env.registry import load_adapter
from engram.env.spec import EnvSpec
from engram.env.workers.transport import Command, CommandSocket, Layout, Status, attach_buffers, send_reply
from engram.settings import UserError

EXIT_SECONDS = 1.0  # granted after the command socket closes, before SIGKILL
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class WorkerSetup:
    """Everything a worker needs to build its environments. `shares`: environment ids by batch."""

    adapter: str
    settings: Any
    seed: int
    spec: EnvSpec
    layout: Layout
    first_env: int  # id of the environment that has the first rows
    shares: dict[int, range]
    code: bytes | None = None  # a pickled class or function of the user's, which the settings name


def main() -> None:
    number, command_file, reply_file, memory_file, lifeline = map(int, sys.argv[1:])
    for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(stop, signal.SIG_IGN)  # the parent finishes its epoch first, then closes its workers
    for file in (command_file, reply_file, memory_file, lifeline):
        os.set_inheritable(file, False)
    _die_with_parent(lifeline)
    commands = CommandSocket(socket.socket(fileno=command_file))
    with contextlib.suppress(EOFError, ConnectionError):  # the parent closed its end or died: exit quietly
        _serve(commands, partial(send_reply, reply_file, number), memory_file)


def perform(block: Block, command: Command, argument: Any) -> Any:
    """Carries out a command. The result is None after most steps and all resets."""
    if command == Command.STEP:
        return block.step()
    if command == Command.STATE:
        return block.state()
    if command == Command.RESTORE:
        return block.restore(argument)
    if command == Command.SCENE:
        return block.scene()
    block.reset(*[] if argument is None else [argument])
    return None


def rows_of(ids: range, first_env: int, agents: int, buffers: Buffers) -> Buffers:
    """The rows of these environments, in buffers that begin with environment `first_env`."""
    return buffers.rows((ids.start - first_env) * agents, (ids.stop - first_env) * agents)


def _serve(commands: CommandSocket, reply: Callable[..., None], memory_file: int) -> None:
    _, batch, setup = commands.receive()
    blocks: dict[int, Block] = {}
    try:
        succeeded = _run(reply, batch, _build, blocks, pickle.loads(setup), memory_file)
        while succeeded:
            command, batch, payload = commands.receive()
            argument = pickle.loads(payload) if payload else None
            succeeded = _run(reply, batch, perform, blocks[batch], command, argument)
    finally:
        for block in blocks.values():
            block.close()


def _run(reply: Callable[..., None], batch: int, function: Callable[..., Any], *arguments: Any) -> bool:
    """Calls a function and replies with its result or error. Returns whether it succeeded."""
    try:
        result = function(*arguments)
    except BaseException as error:  # an environment may call sys.exit
        reply(_status(error), batch, describe_exception(error).encode())
        return False
    reply(Status.DONE, batch, b"" if result is None else pickle.dumps(result, pickle.HIGHEST_PROTOCOL))
    return True


def _status(error: BaseException) -> Status:
    if isinstance(error, NotFiniteError):
        return Status.NOT_FINITE
    return Status.REFUSED if isinstance(error, UserError) or is_wrong_step(error) else Status.FAILED


def _build(blocks: dict[int, Block], setup: WorkerSetup, memory_file: int) -> None:
    if setup.code is not None:
        user_code.unpickle(setup.code)
    adapter = load_adapter(setup.adapter)
    buffers = attach_buffers(memory_file, setup.spec, setup.layout)
    os.close(memory_file)
    for batch, ids in setup.shares.items():
        rows = rows_of(ids, setup.first_env, setup.spec.agents, buffers)
        blocks[batch] = adapter.block(setup.settings, ids, setup.seed, rows)
    gc.freeze()  # these objects live as long as the process, so later collections can skip them


def _die_with_parent(lifeline: int) -> None:
    """Has the kernel kill this process when the parent's end of the pipe closes, even if it hangs or is stopped.

    Only Linux lets us choose the signal. Elsewhere a worker exits when it next waits for a command.
    """
    if sys.platform == "linux":
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


# The parent's side: launching a worker, ending it, and the cause of its death.


@dataclass(eq=False)
class WorkerProcess:
    number: int  # unique among all processes of the pool, also earlier ones
    slot: int  # the index of its setup, which a restarted worker takes over
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
