"""How many threads torch may use: all while it learns, and what the environments' processes leave while they step."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

ROWS_PER_THREAD = 128  # of one step: with fewer, waking a thread takes longer than what it would do


class Threads:
    """Two busy processes with a thread per core each are many times slower than taking turns.

    `rows` are those that act at once.
    """

    def __init__(self, num_workers: int, rows: int) -> None:
        self.learning = torch.get_num_threads()
        self.acting = max(1, min(self.learning - num_workers, rows // ROWS_PER_THREAD))

    @contextmanager
    def while_acting(self) -> Iterator[None]:
        torch.set_num_threads(self.acting)
        try:
            yield
        finally:
            torch.set_num_threads(self.learning)
