"""The faults of a soak: how each is injected, and the outcome that a run must have."""

import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from engram.soak.environment import HANG, RAISE
from engram.soak.trial import Trial

DISK_MEGABYTES = 32
FULL_SECONDS = (0.3, 2.0)  # how long the disk stays full


class Disk:
    """A disk that can be filled: a small file system, or a limit on the size of files where that cannot be mounted."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True)
        self.path, self._limits = path, resource.getrlimit(resource.RLIMIT_FSIZE)
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MEGABYTES}m", "engram-soak", str(path)]
        try:
            self.mounted = not subprocess.run(command, capture_output=True).returncode
        except OSError:
            self.mounted = False

    def fill(self, pid: int) -> None:
        if not self.mounted:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, self._limits[1]))
            return
        with (self.path / "filler").open("wb", buffering=0) as file:
            for size in (2**16, 1):
                with suppress(OSError):
                    while file.write(bytes(size)):
                        pass

    def free(self, pid: int) -> None:
        (self.path / "filler").unlink(missing_ok=True)
        if not self.mounted:
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, self._limits)

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.path)], check=True, capture_output=True)


Inject = Callable[[Trial, Disk, random.Random], None]


class Fault(NamedTuple):
    inject: Inject
    code: int | None = None  # the expected exit code of the program; None: training continues
    ready: Callable[[Trial], bool] = Trial.has_trained  # when it can be injected
    loses_epochs: bool = False  # whether epochs since the last checkpoint may be lost


def _signal(number: signal.Signals) -> Inject:
    def inject(trial: Trial, disk: Disk, rng: random.Random) -> None:
        with suppress(ProcessLookupError):
            os.kill(trial.pid, number)

    return inject


def _fill_disk(trial: Trial, disk: Disk, rng: random.Random) -> None:
    disk.fill(trial.pid)
    time.sleep(rng.uniform(*FULL_SECONDS))
    written = len(trial.epochs())
    disk.free(trial.pid)
    while len(trial.epochs()) == written and trial.wait(0.01) is None:
        pass  # until the metrics are written again: the next fault reads the epoch from them


def _damage_checkpoint(trial: Trial, disk: Disk, rng: random.Random) -> None:
    """Kills the run, then damages one file of its newest checkpoint."""
    _signal(signal.SIGKILL)(trial, disk, rng)
    trial.wait()
    path = rng.choice(sorted(trial.checkpoints()[-1].iterdir()))
    content = bytearray(path.read_bytes())
    damage = rng.choice(["flip", "truncate", "empty", "remove", "replace"])
    if damage == "remove":
        path.unlink()
    elif damage == "flip":
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
    else:
        path.write_bytes({"truncate": bytes(content[: len(content) // 2]), "empty": b"", "replace": b"[]"}[damage])


def _signal_worker(number: signal.Signals) -> Inject:
    def inject(trial: Trial, disk: Disk, rng: random.Random) -> None:
        if workers := trial.workers():
            with suppress(ProcessLookupError):
                os.kill(rng.choice(workers).pid, number)

    return inject


def _request_failure(kind: str) -> Inject:
    def inject(trial: Trial, disk: Disk, rng: random.Random) -> None:
        temporary = trial.failure_file.with_suffix(".new")
        temporary.write_text(kind, encoding="utf-8")
        temporary.rename(trial.failure_file)

    return inject


# After these, a run must end equal to an undisturbed one, to the bit.
EXACT = {
    "kill": Fault(_signal(signal.SIGKILL), -signal.SIGKILL, lambda trial: True, loses_epochs=True),
    "SIGINT": Fault(_signal(signal.SIGINT), 130, Trial.handles_signals),
    "SIGTERM": Fault(_signal(signal.SIGTERM), 143, Trial.handles_signals),
    "SIGHUP": Fault(_signal(signal.SIGHUP), 129, Trial.handles_signals),
    "SIGUSR1": Fault(_signal(signal.SIGUSR1), 138, Trial.handles_signals),
    "full disk": Fault(_fill_disk),
    "damaged checkpoint": Fault(
        _damage_checkpoint, -signal.SIGKILL, lambda trial: len(trial.checkpoints()) > 1, loses_epochs=True
    ),
    "hung environment": Fault(_request_failure(HANG), 1, loses_epochs=True),
}
# After these, the run restarts environments and plays other episodes: only its return can be compared.
RESTARTS = {
    "killed worker": Fault(_signal_worker(signal.SIGKILL)),
    "stopped worker": Fault(_signal_worker(signal.SIGSTOP)),
    "hung environment in a worker": Fault(_request_failure(HANG)),
    "raising environment": Fault(_request_failure(RAISE)),
}
