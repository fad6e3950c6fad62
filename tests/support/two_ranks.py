"""Runs on two ranks. Executed as a program, this file is one of the ranks and does its runs one after another."""

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 120  # seconds, for slow machines; runs are expected to end long before


class Job(NamedTuple):
    """A run: command-line words, further words for rank 1 only, and the epoch after which to interrupt it, if any."""

    words: Sequence[str]
    rank_1: Sequence[str] = ()
    stop: int | None = None


class Ended(NamedTuple):
    """How a run ended on one rank."""

    code: int
    error: str
    listened: list[str]  # addresses on which the rank listened while it trained


def run_on_two_ranks(jobs: Sequence[Job]) -> list[tuple[Ended, Ended]]:
    """Start two ranks as torchrun does, and return how each job ended on both."""
    ports = [free_port() for _ in jobs]
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", __file__, json.dumps([ports, jobs])],
            env=environment() | _variables(rank),
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=TIMEOUT)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    first, second = ([Ended(*each) for each in json.loads(output.splitlines()[-1])] for output in outputs)
    return list(zip(first, second, strict=True))


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _variables(rank: int) -> dict[str, str]:
    common = {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    return {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}


def _run(job: Job) -> Ended:
    """Run the command line, without a display."""
    import psutil
    import torch.distributed
    from support.running import InterruptAfter

    import engram.display.plain
    import engram.display.terminal
    from engram.cli.main import main

    listened: set[str] = set()

    class Watching(InterruptAfter):
        def start(self, plan: object) -> None:
            listened.update(each.laddr.ip for each in psutil.Process().net_connections() if each.status == "LISTEN")

    engram.display.terminal.make_display = lambda *_, **__: contextlib.nullcontext(Watching(job.stop))  # of rank 0
    engram.display.plain.SilentDisplay = lambda: contextlib.nullcontext(Watching(None))  # of rank 1
    words = [*job.words, *(job.rank_1 if os.environ["RANK"] == "1" else ())]
    with contextlib.redirect_stderr(io.StringIO()) as error:
        code = main(["train", *words])
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return Ended(code, error.getvalue(), sorted(listened))


if __name__ == "__main__":
    results = []
    for port, job in zip(*json.loads(sys.argv[1]), strict=True):
        os.environ["MASTER_PORT"] = str(port)
        results.append(_run(Job(*job)))
    print(json.dumps(results))
