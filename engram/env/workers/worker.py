"""A worker process: holds a block for each group it has a share of, and does what it is told over its channel.

Started as a fresh interpreter that inherits four file descriptors, and not by `multiprocessing`: that would import the
user's main module (and so torch) into every worker, demand a main guard of it, and leave a resource tracker running.
"""

import contextlib
import fcntl
import gc
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from engram.env.block import Block, Buffers
from engram.env.errors import describe_exception
from engram.env.registry import load_adapter
from engram.env.workers.answers import tell
from engram.env.workers.channel import Channel
from engram.env.workers.commands import perform
from engram.env.workers.shared_memory import Layout, attach

_AWAKE = 300e-6  # seconds; a policy that thinks longer than that has more use for the core
DONE, FAILED = 0, 1  # codes of answers; a payload is the answer pickled, or the text of what went wrong


@dataclass(frozen=True)
class Job:
    """All that a worker must know. `shares`: the environments it holds of each group that it has a share of."""

    adapter: str
    settings: Any
    seed: int
    agents: int
    layout: Layout
    first_env: int  # the id of the environment that has the first rows
    shares: dict[int, range]


def main() -> None:
    number, channel_file, answers, memory_file, lifeline = map(int, sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to answer, which then closes us
    for file in (channel_file, answers, memory_file, lifeline):
        os.set_inheritable(file, False)
    _die_with_parent(lifeline)
    channel = Channel(socket.socket(fileno=channel_file), awake=_AWAKE)
    with contextlib.suppress(EOFError, ConnectionError):  # the parent closed its end, or died: leave quietly
        _serve(channel, partial(tell, answers, number), memory_file)


def _serve(channel: Channel, report: Callable[..., None], memory_file: int) -> None:
    _, group, job = channel.receive()
    blocks: dict[int, Block] = {}
    try:
        going = _answer(report, group, _build, blocks, pickle.loads(job), memory_file)
        while going:
            command, group, payload = channel.receive()
            argument = pickle.loads(payload) if payload else None
            going = _answer(report, group, perform, blocks[group], command, argument)
    finally:
        for block in blocks.values():
            block.close()


def _answer(report: Callable[..., None], group: int, work: Callable[..., Any], *arguments: Any) -> bool:
    """Do the work and tell; False if it failed."""
    try:
        answer = work(*arguments)
    except Exception as error:
        report(FAILED, group, describe_exception(error).encode())
        return False
    report(DONE, group, b"" if answer is None else pickle.dumps(answer, pickle.HIGHEST_PROTOCOL))
    return True


def _build(blocks: dict[int, Block], job: Job, memory_file: int) -> None:
    adapter = load_adapter(job.adapter)
    buffers = attach(memory_file, job.layout)
    os.close(memory_file)
    for group, ids in job.shares.items():
        rows = rows_of(ids, job.first_env, job.agents, buffers)
        blocks[group] = adapter.block(job.settings, ids, job.seed, rows)
    gc.freeze()  # all of it lives as long as we do: no later collection need look at it


def rows_of(ids: range, first_env: int, agents: int, buffers: Buffers) -> Buffers:
    """The rows of these environments, among those of all that begin with `first_env`."""
    return buffers.rows((ids.start - first_env) * agents, (ids.stop - first_env) * agents)


def _die_with_parent(lifeline: int) -> None:
    """Have the kernel kill us when the parent's end of this pipe closes, even if we hang or are stopped then.

    Only Linux lets us choose the signal. Elsewhere a worker ends when it next listens to its channel.
    """
    if sys.platform == "linux":
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
