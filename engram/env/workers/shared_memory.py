"""Buffers in memory that processes share. It has no name anywhere, so however a process ends nothing is left behind."""

import mmap
import os
import sys
import tempfile

import numpy as np

from engram.env.block import Buffers
from engram.settings import UserError

Layout = dict[str, tuple[tuple[int, ...], np.dtype]]

_ALIGNMENT = 64  # a cache line


def create(layout: Layout) -> int:
    """A file descriptor of zeroed memory for this layout; memory and descriptor live as long as someone holds them."""
    size = _places(layout)[1]
    file = _nameless_file()
    try:
        os.ftruncate(file, size)
        if sys.platform == "linux":
            os.posix_fallocate(file, 0, size)  # run out of memory here, not by a SIGBUS in the middle of a step
    except OSError as error:
        os.close(file)
        raise UserError(f"no room for {size / 2**20:.0f} MiB of environment buffers: {error}") from error
    return file


def attach(file: int, layout: Layout) -> Buffers:
    places, size = _places(layout)
    memory = mmap.mmap(file, size)
    return Buffers(
        **{
            name: np.ndarray(shape, dtype, buffer=memory, offset=places[name])
            for name, (shape, dtype) in layout.items()
        }
    )


def _places(layout: Layout) -> tuple[dict[str, int], int]:
    """The offset of every field, and the size of all."""
    places, end = {}, 0
    for name, (shape, dtype) in layout.items():
        places[name] = end
        length = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        end += -(-length // _ALIGNMENT) * _ALIGNMENT
    return places, max(end, _ALIGNMENT)


def _nameless_file() -> int:
    if sys.platform == "linux":
        return os.memfd_create("engram")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
