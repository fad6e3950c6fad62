"""Keeps tests out of the user's state directory, off instructions that this machine cannot run, and from waiting."""

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

BFLOAT16 = """
import torch
with torch.autocast("cpu", dtype=torch.bfloat16):
    torch.nn.Linear(64, 64)(torch.zeros(64, 64))
"""


def _limit_onednn() -> None:
    """Some virtual machines report AMX without enabling it, and oneDNN's bfloat16 kernels crash."""
    found_out = "ONEDNN_MAX_CPU_ISA" in os.environ or "PYTEST_XDIST_WORKER" in os.environ  # workers inherit it
    if found_out or not _reports_amx():
        return
    if subprocess.run([sys.executable, "-c", BFLOAT16], capture_output=True).returncode < 0:
        os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_FP16"


def _reports_amx() -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and "amx_tile" in cpuinfo.read_text(encoding="utf-8")


_limit_onednn()
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a shell's background; programs under test would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # otherwise every command measures first how busy the machine is
os.fsync = lambda handle: None  # checkpoints of tests need not survive a power failure; waiting for the disk takes long
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="engram-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)
