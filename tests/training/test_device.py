"""Memory that was freed is not given back and asked for again; what the user says counts."""

import ctypes
import subprocess
import sys

import pytest

from engram.training import device

FAULTS = """
import resource, sys
import numpy as np
from engram.training.device import keep_freed_memory

def work():
    return len([np.ones(n << 17) for n in (4, 20, 9, 24, 2, 16)])  # megabytes

if sys.argv[1] == "keep":
    keep_freed_memory()
work(), work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

needs_mallopt = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")


def faults(how):
    return int(subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True).stdout)


@needs_mallopt
def test_freed_memory_is_reused():
    assert faults("keep") * 20 < faults("as it is")


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
