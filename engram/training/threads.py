"""Who has the processors: torch while it learns; while it acts, environments' processes too, beside it or in turns.

Two busy processes with a thread per core each are many times slower than taking turns.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

ROWS_PER_THREAD = 32  # of one step: with fewer, waking a thread takes longer than what it would do
ROWS_PER_BATCH = 128  # a policy is hardly faster with fewer


def number_of_batches(num_workers: int, rows: int) -> int:
    """Of two the policy looks at one while the environments of the other step.

    Rows so few that half of them keep the policy as long as all are one: it and the environments take turns.
    """
    return 2 if num_workers and rows >= 2 * ROWS_PER_BATCH else 1


class Threads:
    """How many threads torch may use."""

    def __init__(self, num_workers: int, rows: int, num_batches: int) -> None:
        beside = num_workers if num_batches > 1 else 0
        self.learning = torch.get_num_threads()
        self.acting = max(1, min(self.learning - beside, rows // num_batches // ROWS_PER_THREAD))

    @contextmanager
    def while_acting(self) -> Iterator[None]:
        torch.set_num_threads(self.acting)
        try:
            yield
        finally:
            torch.set_num_threads(self.learning)
