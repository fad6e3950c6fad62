"""The machine a figure was taken on, and how busy other programs kept it meanwhile."""

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from engram import __version__
from engram.cores import available_cores


def describe() -> dict[str, str | int | float]:
    """What a reader has to know of a machine to make sense of a figure."""
    return {
        "cpu": _cpu_model(),
        "cores": available_cores(),
        "memory_gigabytes": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "numpy": _version("numpy"),
        "engram": __version__,
        "load_average": round(os.getloadavg()[0], 2),
    }


@dataclass
class Others:
    used: float = 0.0  # seconds of processor time of programs other than this one and its children
    seconds: float = 0.0  # that passed meanwhile


@contextmanager
def others_meter() -> Iterator[Others]:
    """Measures what other programs use of the processors while the block runs, or what a host takes away."""
    others, start, busy, own = Others(), time.perf_counter(), _busy(), _own()
    try:
        yield others
    finally:
        others.used = max(0.0, (_busy() - busy) - (_own() - own))
        others.seconds = time.perf_counter() - start


def _busy() -> float:
    """Seconds of processor time that all programs have used, or that the host took away."""
    times = psutil.cpu_times()
    waiting = ("idle", "iowait", "guest", "guest_nice")  # guests are in the others already; not all systems have all
    return sum(seconds for name, seconds in times._asdict().items() if name not in waiting)


def _own() -> float:
    total = 0.0
    for member in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = member.cpu_times()
        except psutil.Error:  # it ended meanwhile
            continue
        total += times.user + times.system
    return total


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    flags = next((line for line in lines if line.startswith("flags")), "")
    wide = [name for name, flag in (("AVX-512", "avx512f"), ("AVX2", "avx2")) if f" {flag}" in flags]
    return " ".join([names[0] if names else platform.machine(), *(f"({name})" for name in wide[:1])])


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
