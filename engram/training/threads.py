"""How many threads torch may use: all while it learns, and what the environments' processes leave while they step."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Threads:
    """Two busy processes with a thread per core each are many times slower than taking turns."""

    def __init__(self, num_workers: int) -> None:
        self.learning = torch.get_num_threads()
        self.acting = max(1, self.learning - num_workers)

    @contextmanager
    def while_acting(self) -> Iterator[None]:
        torch.set_num_threads(self.acting)
        try:
            yield
        finally:
            torch.set_num_threads(self.learning)
