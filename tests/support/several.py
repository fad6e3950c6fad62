"""Runs in two processes at once. As a program this is one of them, and does the runs it is told, one after another."""

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120  # seconds, for a slow machine; no test waits for it


class Job(NamedTuple):
    """A run: its words, those that only the second process gets, and the epoch after which it stops, if it does."""

    words: Sequence[str]
    second: Sequence[str] = ()
    stop: int | None = None


class Ended(NamedTuple):
    code: int
    error: str


def in_two_processes(jobs: Sequence[Job]) -> list[tuple[Ended, Ended]]:
    """How each job ended in both processes, which find each other as if torchrun had started them."""
    ports = [free_port() for _ in jobs]
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", __file__, json.dumps([ports, jobs])],
            env=environment() | _place(rank),
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=PATIENCE)[0] for process in processes]
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


def _place(rank: int) -> dict[str, str]:
    whole = {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    return {**whole, "RANK": str(rank), "LOCAL_RANK": str(rank)}


def _do(job: Job) -> Ended:
    """Through the command line, but for what is shown."""
    import torch.distributed

    import engram.display.terminal
    from engram.cli.main import main

    engram.display.terminal.make_display = lambda *_, **__: contextlib.nullcontext(_stopping(job.stop))
    words = [*job.words, *(job.second if os.environ["RANK"] == "1" else ())]
    with contextlib.redirect_stderr(io.StringIO()) as error:
        code = main(["train", *words])
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return Ended(code, error.getvalue())


def _stopping(epoch: int | None) -> Any:
    from support.running import Silent

    class Stopping(Silent):
        def update(self, record: Any) -> None:
            if record["epoch"] == epoch:
                raise KeyboardInterrupt

    return Stopping()


if __name__ == "__main__":
    results = []
    for port, job in zip(*json.loads(sys.argv[1]), strict=True):
        os.environ["MASTER_PORT"] = str(port)
        results.append(_do(Job(*job)))
    print(json.dumps(results))
