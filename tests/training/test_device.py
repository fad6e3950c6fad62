"""Memory that was freed is not given back and asked for again; what the user says counts."""

import ctypes
import json
import subprocess
import sys

import pytest

from engram.training import device

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
