"""The lock of a run's directory, with real processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engram.config import lock as module
from engram.config.lock import lock
from engram.settings import UserError

HOLD = "import sys; from pathlib import Path; from engram.config.lock import lock; held = lock(Path(sys.argv[1]));"
WAIT = "print('ready', flush=True); sys.stdin.read()"
FORK = "import os; os.fork() and sys.stdin.read();"  # the child is ready, and waits as well
SPAWN = "import subprocess; subprocess.Popen([sys.executable, '-c', 'input()'], close_fds=False);"


@contextmanager
def holder(directory: Path, then: str = "") -> Iterator[subprocess.Popen]:
    """A process that holds the lock, and may have started another."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"{HOLD} {then} {WAIT}", str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process:  # closes its input, and so ends whatever it has started
        assert process.stdout.readline() == "ready\n"
        yield process


def test_a_second_process_is_told_which_one_trains(tmp_path) -> None:
    with holder(tmp_path) as first:
        with pytest.raises(UserError) as caught:
            lock(tmp_path)
        says = f"{tmp_path} is being trained by process {first.pid}: wait for it, stop it, or give another run="
        assert str(caught.value) == says
    lock(tmp_path).close()


@pytest.mark.parametrize("then", ["", FORK, SPAWN], ids=["nothing", "a fork", "a program"])
def test_a_lock_ends_with_a_process_that_is_killed_whatever_it_has_started(tmp_path, then: str) -> None:
    with holder(tmp_path, then) as first:
        os.kill(first.pid, signal.SIGKILL)
        os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
        lock(tmp_path).close()


def test_a_fork_that_ends_does_not_release_the_lock(tmp_path) -> None:
    then = "import os; child = os.fork(); child or os._exit(0); os.waitpid(child, 0);"
    with holder(tmp_path, then), pytest.raises(UserError):
        lock(tmp_path)


def test_who_trains_is_the_process_that_holds_the_lock_now(tmp_path) -> None:
    (tmp_path / ".lock").write_text("123456789\n")
    with lock(tmp_path):
        assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"


def test_a_system_or_a_file_system_without_locks_does_without(tmp_path, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(module.fcntl, "flock", refuse)
    lock(tmp_path).close()
    monkeypatch.setattr(module, "fcntl", None)
    lock(tmp_path).close()
