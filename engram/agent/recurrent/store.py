"""The store: the one object that holds memory between calls. All that is written to it is detached here."""

# N rows known, B rows of a call, L layers, S floats per layer

from collections.abc import Mapping

import torch
from torch import Tensor, nn

Rows = Tensor | slice  # ids of rows [B], or a range of them, which costs less to read and write


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

    def read(self, rows: Rows) -> Tensor:
        """Memory [B, L, S] of these rows; zero for rows never written.

        A copy, but for a range of rows while no gradient is wanted: that is the memory itself, until the next write.
        """
        self._make_room_for(rows)
        memory = self.memory_NLS[rows]
        return memory.clone() if isinstance(rows, slice) and torch.is_grad_enabled() else memory

    def room(self, rows: Rows) -> Tensor | None:
        """Where whoever computes these rows' new memory may put it at once; None if it is to be given to `write`.

        That is the rows themselves, if they are a range and there can be no graph that would have to be cut.
        """
        if not isinstance(rows, slice) or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return None
        self._make_room_for(rows)
        self.known_N[rows] = True
        return self.memory_NLS[rows]

    def write(self, rows: Rows, memory_BLS: Tensor) -> None:
        self._make_room_for(rows)
        memory = self.memory_NLS
        memory[rows] = memory_BLS.detach().to(memory.dtype)
        self.known_N[rows] = True

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

    def _make_room_for(self, rows: Rows) -> None:
        if isinstance(rows, slice):
            needed = rows.stop
        elif rows.device.type == "cpu" and not torch.compiler.is_compiling():
            needed = int(rows.max()) + 1 if rows.numel() else 0
        else:  # reading an id costs a sync on accelerators and a graph break when compiled: reserve() comes first
            needed = 0
        if needed > self.capacity:
            self.reserve(max(needed, 2 * self.capacity))
