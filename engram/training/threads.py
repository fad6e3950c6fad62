"""Divides the cores between torch and the environment workers.

Two busy processes with one thread per core each are many times slower than the two in turn.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

ROWS_PER_THREAD = 32  # with fewer, waking a thread takes longer than its work
ROWS_PER_BATCH = 128  # with fewer, a policy is hardly faster


def number_of_batches(num_workers: int, rows: int) -> int:
    """With two batches, the policy acts on one while the environments of the other step.

    Few rows make one batch, because the policy takes as long for half of them. Policy and environments then alternate.
    """
    return 2 if num_workers and rows >= 2 * ROWS_PER_BATCH else 1


class Threads:
    """The number of torch threads while learning and while acting."""

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
