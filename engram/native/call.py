"""Calls a kernel: validates tensors before their pointers go to C, and provides threads and scratch memory."""

import ctypes
import threading
from collections.abc import Mapping

import torch
from torch import Tensor

from engram.native.library import require_kernels

Shape = tuple[int, ...]

_thread = threading.local()


def check_tensors(
    kernel: str,
    tensors: Mapping[str, Tensor | None],
    shapes: Mapping[str, Shape],
    dtype: torch.dtype = torch.float32,
) -> None:
    """Raise `ValueError` unless each tensor (None is skipped) has its shape and this dtype, on the CPU.

    Kernels trust what they get: a wrong size would read or write out of bounds.
    """
    for name, tensor in tensors.items():
        if tensor is not None and (tensor.shape != shapes[name] or tensor.dtype is not dtype or not tensor.is_cpu):
            raise ValueError(
                f"{kernel}: {name} must be {list(shapes[name])} of {dtype} on the CPU, "
                f"got {list(tensor.shape)} of {tensor.dtype} on {tensor.device}"
            )


def pointers(names: str) -> list[tuple[str, type]]:
    """Fields of a `ctypes.Structure` for these space-separated names."""
    return [(name, ctypes.c_void_p) for name in names.split()]


def integers(names: str) -> list[tuple[str, type]]:
    return [(name, ctypes.c_long) for name in names.split()]


def set_pointers(call: ctypes.Structure, tensors: Mapping[str, Tensor]) -> None:
    """Set each field to the address of the tensor of that name. The caller must keep the tensors alive."""
    for name, tensor in tensors.items():
        setattr(call, name, tensor.data_ptr())


def run(kernel: str, call: ctypes.Structure) -> None:
    """Call `engram_KERNEL` with this structure."""
    getattr(require_kernels(), f"engram_{kernel}")(ctypes.byref(call))


def scratch(kernel: str, call: ctypes.Structure) -> int:
    """The address of as many floats as `engram_KERNEL_scratch` asks for.

    Each calling thread keeps its buffer, since memory is slow when a process first touches it.
    """
    size = getattr(require_kernels(), f"engram_{kernel}_scratch")(ctypes.byref(call))
    buffer: Tensor | None = getattr(_thread, "buffer", None)
    if buffer is None or buffer.numel() < size:
        buffer = _thread.buffer = torch.empty(size, dtype=torch.float32, device="cpu")
    return buffer.data_ptr()


def num_threads(rows: int, rows_per_thread: int) -> int:
    """The number of threads for a kernel: torch's, or fewer if there are too few rows to share."""
    return max(1, min(torch.get_num_threads(), rows // rows_per_thread))
