"""Buffers in shared memory. It is anonymous, so nothing is left behind however a process ends."""

import mmap
import os
import sys
import tempfile

import numpy as np

from engram.env.block import Buffers
from engram.env.spec import EnvSpec
from engram.settings import UserError

Layout = dict[str, tuple[tuple[int, ...], np.dtype]]

_ALIGNMENT = 64  # a cache line


def create(layout: Layout) -> int:
    """Allocates zeroed memory for this layout and returns its file descriptor. The caller closes it."""
    size = _offsets(layout)[1]
    file = _anonymous_file()
    try:
        os.ftruncate(file, size)
        if sys.platform == "linux":
            os.posix_fallocate(file, 0, size)  # fail here if memory is short, not with a SIGBUS in the middle of a step
    except OSError as error:
        os.close(file)
        raise UserError(
            f"cannot allocate {size / 2**20:.0f} MiB for environment buffers: {error}; try fewer environments"
        ) from error
    return file


def attach(file: int, spec: EnvSpec, layout: Layout) -> Buffers:
    offsets, size = _offsets(layout)
    memory = mmap.mmap(file, size)
    return Buffers(
        spec,
        **{
            name: np.ndarray(shape, dtype, buffer=memory, offset=offsets[name])
            for name, (shape, dtype) in layout.items()
        },
    )


def _offsets(layout: Layout) -> tuple[dict[str, int], int]:
    """The offset of every field, and the total size."""
    offsets, end = {}, 0
    for name, (shape, dtype) in layout.items():
        offsets[name] = end
        length = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        end += -(-length // _ALIGNMENT) * _ALIGNMENT
    return offsets, max(end, _ALIGNMENT)


def _anonymous_file() -> int:
    if sys.platform == "linux":
        return os.memfd_create("engram")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
