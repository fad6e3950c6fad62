"""Contestants as separate processes: measured on command, and suspended between their turns."""

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from engram.bench.race import Measure, Slice

START_TIMEOUT = 300.0  # seconds; some programs compile first
TURN_TIMEOUT = 120.0  # seconds beyond the turn: an iteration may be long
STARTED = "ENGRAM_BENCH_STARTED"  # read by `meter.py`


class ProgramError(Exception):
    """A program could not be started or measured; the message gives the last line of its errors."""


class Process:
    """A program that answers the commands of `meter.py`."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], directory: Path) -> None:
        self._errors: IO[bytes] = (directory / "errors.txt").open("wb+")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **environment, STARTED: repr(time.time())},
            cwd=directory,
            start_new_session=True,  # a process group, so that signals reach its workers too
        )
        self._buffer = b""

    def wait_until_ready(self) -> None:
        self._read(START_TIMEOUT)
        self._signal(signal.SIGSTOP)

    def request(self, command: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Send a command and wait for the reply."""
        self.send(command)
        return self.receive(timeout)

    def send(self, command: dict[str, Any]) -> None:
        """Resume the program with a command."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ProgramError(self._last_error()) from None

    def receive(self, timeout: float) -> dict[str, Any]:
        """Wait for the reply, then suspend the program with all its workers."""
        reply = self._read(timeout)
        self._signal(signal.SIGSTOP)
        return reply

    def close(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with suppress(OSError):
                if stream is not None:
                    stream.close()

    def _read(self, timeout: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        deadline, pipe = time.monotonic() + timeout, self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise ProgramError(f"no reply within {timeout:.0f} seconds; {self._last_error()}")
            read = os.read(pipe, 65536)
            if not read:
                self._process.wait()
                raise ProgramError(self._last_error())
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def _last_error(self) -> str:
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return f"last line of its errors: {lines[-1]}" if lines else "it wrote no error"

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


@contextmanager
def start_program(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Process]:
    with tempfile.TemporaryDirectory(prefix="engram-bench-", ignore_cleanup_errors=True) as directory:
        process = Process(command, environment, Path(directory))
        try:
            process.wait_until_ready()
            yield process
        finally:
            process.close()


def in_own_process(
    command: Sequence[str],
    threads: int,
    environment: Mapping[str, str] | None = None,
    steps_per_update: float | None = None,
) -> Callable[[], Any]:
    """`Contestant.open` for a program that answers the commands of `meter.py`.

    With `steps_per_update`, a program that updates more or less often fails, since it does not do the same work.
    Programs whose optimiser runs in another process cannot be checked.
    """

    @contextmanager
    def open_program() -> Iterator[Measure]:
        with start_program(command, {**thread_variables(threads), **(environment or {})}) as process:

            def measure(seconds: float) -> Slice:
                reply = process.request({"measure": seconds}, seconds + TURN_TIMEOUT)
                steps, updates = reply["steps"], reply["updates"]
                if steps_per_update and updates and not 0.99 < steps / updates / steps_per_update < 1.01:
                    expected = f"expected one every {steps_per_update:g} steps"
                    raise ProgramError(f"not the same work: {updates} updates in {steps} steps; {expected}")
                return Slice(steps, reply["seconds"], reply["phases"])

            yield measure

    return open_program


def learn(
    command: Sequence[str], threads: int, steps: int, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Train from scratch for this many steps; returns the reply with the return and the seconds."""
    with start_program(command, {**thread_variables(threads), **(environment or {})}) as process:
        return process.request({"learn": steps}, timeout=7200.0)


def thread_variables(threads: int) -> dict[str, str]:
    """Environment variables for libraries that start their threads at import."""
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
