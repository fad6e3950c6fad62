"""Tells glibc to keep freed memory, since getting it back from the system costs a page fault per page."""

import ctypes
import os

TRIM, MMAP = "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"  # glibc's environment variables
_OPTIONS = {TRIM: -1, MMAP: -3}  # parameters of mallopt
_SIZES = {TRIM: 512 << 20, MMAP: 32 << 20}  # bytes; glibc's maximum for the second


def keep_freed_memory() -> None:
    """Call this before allocating much. Does nothing if the user has set either option.

    Every minibatch allocates and frees the same tensors of some megabytes, and by default glibc returns many of them.
    Both options are needed: setting one disables glibc's dynamic choice of the other.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is None or any(name in os.environ for name in _OPTIONS):
        return
    for name, number in _OPTIONS.items():
        mallopt(number, _SIZES[name])
