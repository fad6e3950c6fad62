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
def test_memory_that_was_freed_is_used_again():
    assert faults("keep") * 20 < faults("as it is")


@needs_mallopt
@pytest.mark.parametrize("name", [device.TRIM, device.MMAP])
def test_what_the_user_has_set_is_left_alone(monkeypatch, name):
    asked = []
    monkeypatch.setattr(ctypes, "CDLL", lambda _: type("C", (), {"mallopt": staticmethod(lambda *a: asked.append(a))}))
    monkeypatch.setenv(name, "1000000")
    device.keep_freed_memory()
    assert asked == []
    monkeypatch.delenv(name)
    device.keep_freed_memory()
    assert asked == [(-1, 512 << 20), (-3, 32 << 20)]


def test_a_c_library_without_such_options_is_no_error(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    device.keep_freed_memory()
