"""Describes the machine of a measurement, and measures the load of other programs during it."""

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
    """The properties of this machine that affect speed."""
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
class OtherLoad:
    cpu_seconds: float = 0.0  # CPU time of all programs but this one and its children
    seconds: float = 0.0  # wall-clock time


@contextmanager
def measure_other_load() -> Iterator[OtherLoad]:
    """Measures the CPU time that other programs use, or that the host takes away, while the block runs."""
    load, start, total, own = OtherLoad(), time.perf_counter(), _total_cpu_seconds(), _own_cpu_seconds()
    try:
        yield load
    finally:
        load.cpu_seconds = max(0.0, (_total_cpu_seconds() - total) - (_own_cpu_seconds() - own))
        load.seconds = time.perf_counter() - start


def _total_cpu_seconds() -> float:
    """CPU time that all programs have used or that the host took away."""
    times = psutil.cpu_times()
    excluded = ("idle", "iowait", "guest", "guest_nice")  # user time already includes guests
    return sum(seconds for name, seconds in times._asdict().items() if name not in excluded)


def _own_cpu_seconds() -> float:
    total = 0.0
    for member in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = member.cpu_times()
        except psutil.Error:  # it has ended
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
