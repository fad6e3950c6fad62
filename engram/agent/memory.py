"""The store: the one object that holds memory between calls. All that is written to it is detached here."""

# N rows known, B rows of a call, L layers, S floats per layer

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class MemoryStore(nn.Module):
    """One row of memory per environment row, in one tensor that grows by doubling up to the largest id seen.

    Not part of the weights: the buffers are not in the state dict, and copies of a policy do not share them.
    """

    memory_NLS: Tensor
    known_N: Tensor

    def __init__(self, layers: int, size: int) -> None:
        super().__init__()
        self.register_buffer("memory_NLS", torch.zeros(0, layers, size), persistent=False)
        self.register_buffer("known_N", torch.zeros(0, dtype=torch.bool), persistent=False)

    @property
    def capacity(self) -> int:
        return self.known_N.shape[0]

    def reserve(self, rows: int) -> None:
        """Make room for ids below `rows`. What is there stays."""
        if rows <= self.capacity:
            return
        grown = self.memory_NLS.new_zeros(rows, *self.memory_NLS.shape[1:])
        grown[: self.capacity] = self.memory_NLS
        known = self.known_N.new_zeros(rows)
        known[: self.capacity] = self.known_N
        self.memory_NLS, self.known_N = grown, known

    def read(self, ids_B: Tensor) -> Tensor:
        """Memory [B, L, S] of these rows; zero for rows never written."""
        self._make_room_for(ids_B)
        return self.memory_NLS.index_select(0, ids_B)

    def write(self, ids_B: Tensor, memory_BLS: Tensor) -> None:
        self._make_room_for(ids_B)
        self.memory_NLS.index_copy_(0, ids_B, memory_BLS.detach().to(self.memory_NLS.dtype))
        self.known_N.index_fill_(0, ids_B, True)

    def clear(self, env_id: int | None = None) -> None:
        """Forget one row, or all; rows that are not there are no error."""
        rows = slice(None) if env_id is None else slice(env_id, env_id + 1)
        self.memory_NLS[rows] = 0
        self.known_N[rows] = False

    def known_ids(self) -> list[int]:
        return self.known_N.nonzero().flatten().tolist()

    def load(self, rows: Mapping[int, Tensor]) -> None:
        """Replace everything by these rows, each [L, S]."""
        self.clear()
        if rows:
            ids = torch.tensor(list(rows), dtype=torch.long, device=self.memory_NLS.device)
            self.write(ids, torch.stack([row.to(self.memory_NLS.device) for row in rows.values()]))

    def _make_room_for(self, ids_B: Tensor) -> None:
        # Reading an id costs a sync on accelerators and a graph break when compiled: there, reserve() comes first.
        if ids_B.device.type == "cpu" and not torch.compiler.is_compiling():
            largest = int(ids_B.max()) if ids_B.numel() else -1
            if largest >= self.capacity:
                self.reserve(max(largest + 1, 2 * self.capacity))
