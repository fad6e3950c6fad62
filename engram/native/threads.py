"""What every call of the kernels needs: threads, as many as torch may use, and a place to work."""

import threading

import torch
from torch import Tensor

_local = threading.local()


def threads_for(rows: int, rows_each: int) -> int:
    """Fewer than torch may use where rows are too few to be worth waking one for."""
    return max(1, min(torch.get_num_threads(), rows // rows_each))


def scratch(floats: int) -> int:
    """A place for each calling thread, kept, since memory is slow when a process first touches it."""
    place: Tensor | None = getattr(_local, "place", None)
    if place is None or place.numel() < floats:
        place = _local.place = torch.empty(floats, dtype=torch.float32, device="cpu")
    return place.data_ptr()
