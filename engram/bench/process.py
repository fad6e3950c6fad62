"""A contestant in a process of its own: started, measured on command, stopped in its tracks between its turns."""

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

START_TIMEOUT = 300.0  # seconds: some compile first
TURN_TIMEOUT = 120.0  # beyond the seconds it was given: an iteration may be long


class PeerError(Exception):
    """The process could not be started or measured; the text says why, as far as it told."""


class Process:
    """Speaks the protocol of `runners/meter.py` with a program."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], directory: Path) -> None:
        self._errors: IO[bytes] = (directory / "errors.txt").open("wb+")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **environment},
            cwd=directory,
            start_new_session=True,  # a group of its own, with whatever workers it makes
        )
        self._buffer = b""

    def wait_until_ready(self, timeout: float = START_TIMEOUT) -> None:
        self._read(timeout)
        self._signal(signal.SIGSTOP)

    def ask(self, command: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Tell it, and wait for the answer."""
        self.tell(command)
        return self.answer(timeout)

    def tell(self, command: dict[str, Any]) -> None:
        """Let it go on with a command."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerError(self._last_words()) from None

    def answer(self, timeout: float) -> dict[str, Any]:
        """Wait for its answer; then it stands still again, with all its workers."""
        answer = self._read(timeout)
        self._signal(signal.SIGSTOP)
        return answer

    def close(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with suppress(OSError):
                if stream is not None:
                    stream.close()

    def _read(self, timeout: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        until, pipe = time.monotonic() + timeout, self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            if not select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
                raise PeerError(f"no answer within {timeout:.0f} seconds; {self._last_words()}")
            read = os.read(pipe, 65536)
            if not read:
                self._process.wait()
                raise PeerError(self._last_words())
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return f"it ended: {lines[-1]}" if lines else "it ended without a word"

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


@contextmanager
def opened(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Process]:
    with tempfile.TemporaryDirectory(prefix="engram-bench-", ignore_cleanup_errors=True) as directory:
        process = Process(command, environment, Path(directory))
        try:
            process.wait_until_ready()
            yield process
        finally:
            process.close()


def contestant(
    command: Sequence[str],
    threads: int,
    environment: Mapping[str, str] | None = None,
    steps_per_update: float | None = None,
) -> Callable[[], Any]:
    """What `Contestant.open` needs, for a program that speaks the protocol.

    With `steps_per_update` it must do that work: speeds of programs that learn more or less often, or count their steps
    otherwise, say nothing. A program whose optimiser is in another process cannot be checked.
    """

    @contextmanager
    def open_it() -> Iterator[Measure]:
        with opened(command, {**thread_variables(threads), **(environment or {})}) as process:

            def measure(seconds: float) -> Slice:
                answer = process.ask({"measure": seconds}, seconds + TURN_TIMEOUT)
                steps, updates = answer["steps"], answer["updates"]
                if steps_per_update and updates and not 0.99 < steps / updates / steps_per_update < 1.01:
                    raise PeerError(
                        f"not the same work: {updates} updates in {steps} steps, one is due every {steps_per_update:g}"
                    )
                return Slice(steps, answer["seconds"], answer["phases"])

            yield measure

    return open_it


def learn(
    command: Sequence[str], threads: int, steps: int, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Train from the start for so many steps: what it was worth then, and how long it took."""
    with opened(command, {**thread_variables(threads), **(environment or {})}) as process:
        return process.ask({"learn": steps}, timeout=7200.0)


def thread_variables(threads: int) -> dict[str, str]:
    """For libraries that start threads before anybody can tell them how many."""
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
