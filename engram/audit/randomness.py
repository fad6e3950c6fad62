"""Random states: an audit leaves all of them as they were."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def unchanged_randomness() -> Iterator[None]:
    """Whatever is drawn or seeded inside, torch, NumPy and Python go on drawing what they would have."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    ours, theirs = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(ours)
        np.random.set_state(theirs)
