"""Devices, threads and the memory allocator of a run."""

import ctypes
import json
import subprocess
import sys

import pytest
import torch

from engram.training import device
from engram.training.device import Threads, number_of_batches

FAULTS = """
import ctypes, json, resource, sys
import numpy as np

def work():
    return len([np.ones(n << 17) for n in (4, 20, 9, 24, 2, 16)])  # megabytes

for parameter, size in json.loads(sys.argv[1]):
    ctypes.CDLL(None).mallopt(parameter, size)
work(), work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

needs_mallopt = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")


def faults(options: list[tuple[int, int]]) -> int:
    """Page faults of a program that sets these options of malloc."""
    words = [sys.executable, "-c", FAULTS, json.dumps(options)]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


@needs_mallopt
def test_freed_memory_is_reused():
    options = [(number, device.MALLOPT_BYTES[name]) for name, number in device.MALLOPT_PARAMETERS.items()]
    assert faults(options) * 20 < faults([])


@needs_mallopt
@pytest.mark.parametrize("name", [device.TRIM, device.MMAP])
def test_options_that_the_user_has_set_are_not_changed(monkeypatch, name):
    asked = []
    monkeypatch.setattr(ctypes, "CDLL", lambda _: type("C", (), {"mallopt": staticmethod(lambda *a: asked.append(a))}))
    monkeypatch.setenv(name, "1000000")
    device.keep_freed_memory()
    assert asked == []
    monkeypatch.delenv(name)
    device.keep_freed_memory()
    assert asked == [(-1, 512 << 20), (-3, 32 << 20)]


def test_a_c_library_without_mallopt_is_supported(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    device.keep_freed_memory()


@pytest.mark.parametrize(
    ("threads", "workers", "rows", "batches", "acting"),
    [
        (2, 0, 32, 1, 1),
        (2, 0, 64, 1, 2),
        (2, 0, 384, 1, 2),
        (2, 2, 4096, 2, 1),
        (2, 2, 255, 1, 2),
        (4, 4, 256, 2, 1),
        (64, 32, 8192, 2, 32),
        (64, 32, 512, 2, 8),
        (1, 0, 10_000, 1, 1),
    ],
)
def test_threads_for_acting_depend_on_workers_and_rows(monkeypatch, threads, workers, rows, batches, acting):
    now = [threads]
    monkeypatch.setattr(torch, "get_num_threads", lambda: now[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda number: now.__setitem__(0, number))
    assert number_of_batches(workers, rows) == batches
    with Threads(workers, rows, batches).while_acting():
        assert now == [acting]
    assert now == [threads]


def test_with_one_batch_the_policy_uses_the_cores_of_waiting_workers():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        assert Threads(4, 512, 1).acting == 4
        assert Threads(3, 1024, 2).acting == 1
    finally:
        torch.set_num_threads(before)
