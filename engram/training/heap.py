"""Freed memory is kept for the next use: to get it from the system again costs a fault for every page of it."""

import ctypes
import os

TRIM, MMAP = "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"  # what glibc itself looks at
_OPTIONS = {TRIM: -1, MMAP: -3}  # their numbers for mallopt
_SIZES = {TRIM: 512 << 20, MMAP: 32 << 20}  # bytes; of the second glibc takes no more


def keep_freed_memory() -> None:
    """Has to come before much memory is used, and leaves alone what the user has set.

    Every minibatch makes and frees the same tensors of some megabytes, and by itself glibc gives many of them back.
    Both options are needed: to set one ends the automatic choice of the other.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is None or any(name in os.environ for name in _OPTIONS):
        return
    for name, number in _OPTIONS.items():
        mallopt(number, _SIZES[name])
