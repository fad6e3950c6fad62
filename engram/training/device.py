"""Computing resources of a rank: device, precision, threads, memory allocator, and random generators."""

import ctypes
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch

from engram.settings import UserError
from engram.training.launch import RankInfo

Precision = Literal["float32", "bfloat16"]
CPU_FLAGS = Path("/proc/cpuinfo")
TRIM, MMAP = "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"  # environment variables of glibc
MALLOPT_PARAMETERS = {TRIM: -1, MMAP: -3}
MALLOPT_BYTES = {TRIM: 512 << 20, MMAP: 32 << 20}  # the second is glibc's maximum
ROWS_PER_THREAD = 32  # with fewer, waking a thread takes longer than its work
ROWS_PER_BATCH = 128  # with fewer, a policy is hardly faster
BFLOAT16_PRODUCT = """
import torch
with torch.autocast("cpu", torch.bfloat16):
    torch.nn.Linear(64, 64)(torch.zeros(64, 64))
"""


def choose_device(name: str, rank: RankInfo | None = None) -> torch.device:
    """The device by name; `auto` selects the fastest available one. With several ranks, each has its own GPU."""
    rank = rank or RankInfo()
    available = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available() and rank.size == 1,  # gradients cannot be all-reduced on MPS
    }
    if name == "auto":
        name = next(kind for kind in ("cuda", "mps", "cpu") if available[kind])
    if not available[name]:
        usable = ", ".join(kind for kind, present in available.items() if present)
        ranks = f" for {rank.size} ranks" if rank.size > 1 else ""
        raise UserError(f"device={name}: not available to torch on this machine{ranks}: choose one of {usable}")
    if name != "cuda" or rank.size == 1:
        return torch.device(name)
    if rank.local_rank >= torch.cuda.device_count():
        raise UserError(
            f"device=cuda: {rank.local_size} processes on a machine with {torch.cuda.device_count()} GPUs: start one "
            "for each, with torchrun --nproc-per-node=gpu"
        )
    return torch.device("cuda", rank.local_rank)


def autocast(precision: Precision, device: torch.device) -> torch.autocast:
    """bfloat16 for the matrix products of encoders and heads; weights, memory and the loss stay in float32.

    Acting and learning must use the same precision, or the replay differs from the rollout.
    """
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


def require_precision(precision: Precision, device: torch.device) -> None:
    """Raise if bfloat16 would kill the process, as it does where a virtual machine announces AMX but disables it.

    Only another process can find that out and survive.
    """
    if precision != "bfloat16" or device.type != "cpu" or not _announces_amx():
        return
    product = subprocess.run([sys.executable, "-c", BFLOAT16_PRODUCT], capture_output=True, check=False)
    if product.returncode < 0:
        raise UserError(
            "trainer.precision=bfloat16: this CPU announces AMX but cannot run it (a bfloat16 product ended with "
            f"signal {-product.returncode}): set the environment variable ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16, or use "
            "trainer.precision=float32"
        )


def keep_freed_memory() -> None:
    """Let glibc keep freed memory, since getting it back from the system costs a page fault per page.

    Call this before allocating much. Does nothing if the user has set either option.

    Every minibatch allocates and frees the same tensors of some megabytes, and by default glibc returns many of them.
    Both options are needed: setting one disables glibc's dynamic choice of the other.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is None or any(name in os.environ for name in MALLOPT_PARAMETERS):
        return
    for name, number in MALLOPT_PARAMETERS.items():
        mallopt(number, MALLOPT_BYTES[name])


def number_of_batches(num_workers: int, rows: int) -> int:
    """The number of batches. With two, the policy acts on one while the environments of the other step.

    Few rows make one batch, because the policy takes as long for half of them. Policy and environments then alternate.
    """
    return 2 if num_workers and rows >= 2 * ROWS_PER_BATCH else 1


class Threads:
    """The number of torch threads while learning and while acting: workers that step meanwhile need cores too.

    Two busy processes with one thread per core each are many times slower than one after the other.
    """

    def __init__(self, num_workers: int, rows: int, num_batches: int) -> None:
        concurrent_workers = num_workers if num_batches > 1 else 0
        self.learning = torch.get_num_threads()
        self.acting = max(1, min(self.learning - concurrent_workers, rows // num_batches // ROWS_PER_THREAD))

    @contextmanager
    def while_acting(self) -> Iterator[None]:
        torch.set_num_threads(self.acting)
        try:
            yield
        finally:
            torch.set_num_threads(self.learning)


def _announces_amx() -> bool:
    return CPU_FLAGS.exists() and "amx_tile" in CPU_FLAGS.read_text(encoding="utf-8")


def generator(device: torch.device | str, seed: int, *purpose: str | int) -> torch.Generator:
    return torch.Generator(device).manual_seed(derive_seed(seed, *purpose))


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed, different for every purpose."""
    return int.from_bytes(hashlib.sha256(repr((seed, *purpose)).encode()).digest()[:8], "big") >> 1
