"""Loads and calls the kernels: those installed with the package, else those in the user's cache, built at first use.

`ENGRAM_NATIVE=0` switches them off; `ENGRAM_NATIVE=avx512`, `avx2` or `plain` selects an instruction set.
"""

import ctypes
import importlib.machinery
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from engram.native.build import HERE, compile_library, fingerprint
from engram.native.operator import is_exported

SETTING = "ENGRAM_NATIVE"
OFF = ("0", "off", "no", "false")
INSTRUCTION_SETS = ("avx512", "avx2", "plain")

SCRATCH_FUNCTIONS = (  # each returns a number of floats
    "engram_lstm_forward_scratch",
    "engram_lstm_backward_scratch",
    "engram_token_conv_scratch",
    "engram_layers_forward_scratch",
    "engram_layers_backward_scratch",
)

Shape = tuple[int, ...]

_switched_off = 0
_thread = threading.local()  # holds the scratch buffer of each calling thread
_log = logging.getLogger(__name__)


def kernels() -> ctypes.CDLL | None:
    """The kernels; None if they are unavailable or switched off, or during an export, whose graph cannot contain them.

    Without them, PyTorch computes the same.
    """
    return None if _switched_off or is_exported() else _library()


@torch.compiler.assume_constant_result
def available() -> bool:
    """Whether the kernels are used. Compiled graphs keep the answer from when they were traced."""
    return kernels() is not None


def usable(x: Tensor) -> bool:
    """Whether the kernels are used for this tensor: they need float32 on the CPU."""
    return x.dtype == torch.float32 and x.device.type == "cpu" and kernels() is not None


def require_kernels() -> ctypes.CDLL:
    """The kernels, also while switched off: a kernel's forward pass needs the kernel's backward pass."""
    library = _library()
    assert library is not None
    return library


@contextmanager
def without_kernels() -> Iterator[None]:
    """Use PyTorch instead of the kernels, to compare the two."""
    global _switched_off
    _switched_off += 1
    try:
        yield
    finally:
        _switched_off -= 1


def instruction_sets() -> list[str]:
    """The instruction sets this processor supports, fastest first."""
    library = _library()
    if library is None:
        return []
    selected = library.engram_instruction_set().decode()
    names = [name for name in INSTRUCTION_SETS if select_instruction_set(library, name) == name]
    select_instruction_set(library, selected)
    return names


def select_instruction_set(library: ctypes.CDLL, name: str | None = None) -> str | None:
    """Select an instruction set, by default the fastest. Returns its name, or None if it is unsupported."""
    selected = library.engram_select(None if name is None else name.encode())
    return None if selected is None else selected.decode()


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
    """The address of a buffer of as many floats as `engram_KERNEL_scratch` returns.

    Each calling thread keeps its buffer, because the first access to new memory is slow.
    """
    size = getattr(require_kernels(), f"engram_{kernel}_scratch")(ctypes.byref(call))
    buffer: Tensor | None = getattr(_thread, "buffer", None)
    if buffer is None or buffer.numel() < size:
        buffer = _thread.buffer = torch.empty(size, dtype=torch.float32, device="cpu")
    return buffer.data_ptr()


def num_threads(rows: int, rows_per_thread: int) -> int:
    """The number of threads for a kernel: torch's, or fewer if there are too few rows to share."""
    return max(1, min(torch.get_num_threads(), rows // rows_per_thread))


@cache
def _library() -> ctypes.CDLL | None:
    setting = os.environ.get(SETTING, "").lower()
    if setting in OFF:
        return None
    library, problem = _find()
    if library is not None:
        selected = select_instruction_set(library, setting if setting in INSTRUCTION_SETS else None)
        problem = None if selected else f"this processor does not support {SETTING}={setting}"
    if problem is not None:
        _log.warning("native kernels are off, PyTorch computes the same more slowly: %s", problem)
        return None
    return library


def _find() -> tuple[ctypes.CDLL | None, str | None]:
    """The library, or the reason why it cannot be used."""
    installed = [HERE / f"kernels{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES]
    cached = cache_directory() / f"kernels-{fingerprint()}.so"
    for path in (*installed, cached):
        if path.exists() and (library := _open(path)) is not None:
            return library, None
    problem = compile_library(cached)
    if problem is not None:
        return None, problem
    library = _open(cached)
    return library, None if library is not None else f"{cached} cannot be loaded"


def _open(path: Path) -> ctypes.CDLL | None:
    """The library, or None if it does not load or was built from different sources."""
    try:
        library = ctypes.CDLL(str(path))
        for function in (library.engram_sources, library.engram_select, library.engram_instruction_set):
            function.restype = ctypes.c_char_p
        library.engram_select.argtypes = [ctypes.c_char_p]
        if library.engram_sources().decode() != fingerprint():
            return None
        for name in SCRATCH_FUNCTIONS:
            getattr(library, name).restype = ctypes.c_long
        return library
    except (OSError, AttributeError):
        return None


def cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "engram"
